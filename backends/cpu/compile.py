"""How kernels are compiled, and where the machine code is kept between processes.

Nothing is compiled or written when a module is imported: numba's own `cache=True` would already probe the
source tree. `keep` turns the on-disk cache on, in a folder named by a hash of every kernel source, because
numba only watches the file of the function itself and would run a stale kernel after an edit of an
imported one.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite
import numba
from numba.core import config
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from opgauge.reference_engine import caches
from opgauge.reference_engine.types import Array


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, without the GIL, division by zero as IEEE; cached once `keep` was called."""
    return numba.njit(nogil=True, error_model="numpy")(function)


def plain(x: Array) -> Array:
    """x as the one array type that kernels are compiled for: read-only or misaligned memory is copied."""
    return x if x.flags.carray else x.copy()


def flat(x: Array) -> Array:
    """x in one dimension, as `plain`."""
    return x.ravel() if x.flags.carray else x.flatten()


@lru_cache(maxsize=8)
def target_features(codegen: Any) -> frozenset[str]:
    """The vector features LLVM compiles for; honours NUMBA_CPU_NAME and NUMBA_CPU_FEATURES."""
    return frozenset(f[1:] for f in codegen.magic_tuple()[2].split(",") if f.startswith("+"))


def fuses(codegen: Any) -> bool:
    """Whether a * b + c is rounded once on this CPU."""
    return "fma" in target_features(codegen) or codegen.magic_tuple()[0].startswith(("aarch64", "arm64"))


def host_codegen() -> Any:
    return cpu_target.target_context.codegen()


def source_hash(sources: Iterable[Path]) -> str:
    """A name for exactly these sources under these compilers."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode())
    for path in sorted(sources):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(sources: Iterable[Path]) -> Path | None:
    """The folder for these sources, made when missing; None where nothing can be written.

    OPGAUGE_CACHE_DIR overrides the user's cache folder.
    """
    folder = caches.root() / "numba" / source_hash(sources)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder


def keep(modules: Sequence[ModuleType], folder: Path | None) -> None:
    """Keep what these modules compile in `folder`; None keeps nothing."""
    if folder is None:
        return
    # numba reads the setting when a function's cache is set up; other users of numba keep theirs.
    settings = vars(config)
    before = settings["CACHE_DIR"]
    settings["CACHE_DIR"] = str(folder)
    try:
        for kernel in kernels_of(modules):
            kernel.enable_caching()
    finally:
        settings["CACHE_DIR"] = before


def kernels_of(modules: Sequence[ModuleType]) -> list[Any]:
    """Every compiled function that these modules define."""
    found = (v for module in modules for v in vars(module).values())
    return [v for v in found if isinstance(v, Dispatcher)]
