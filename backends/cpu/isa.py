"""Levels of vector instructions: what code is compiled for, and how a lower one is forced.

OPGAUGE_ISA=portable|avx2|vnni|amx sets numba's CPU before anything is compiled, so that every kernel is of that
level and numba's cache key knows it; without it the level is what the CPU offers.
"""

from __future__ import annotations

import os
from typing import Any

import llvmlite.binding as llvm
from numba.core import config
from numba.core.registry import cpu_target

from opgauge.reference_engine.errors import BackendUnavailableError

VARIABLE = "OPGAUGE_ISA"
SSE = "sse sse2 cx16 fxsr mmx cmov cx8".split()
AVX2 = "sse3 ssse3 sse4.1 sse4.2 popcnt avx avx2 fma f16c bmi bmi2 lzcnt movbe".split()
# level: what a CPU must offer, and the features that code may use (empty: all that the CPU has, AMX apart).
NEEDED = {
    "portable": ((), tuple(SSE)),
    "avx2": (("avx2", "fma"), (*SSE, *AVX2)),
    "vnni": (("avx512vnni",), ()),
    "amx": (("amx-int8", "amx-tile"), ()),
}


def host_features() -> frozenset[str]:
    """What LLVM says of this CPU, whatever numba was told."""
    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


def check(level: str, offered: frozenset[str]) -> None:
    """Raises: BackendUnavailableError for a word that is no level, or a level that the CPU or this engine lacks."""
    if level not in NEEDED:
        raise BackendUnavailableError(f"cpu: {VARIABLE}={level}: write {', '.join(NEEDED)}")
    missing = [f for f in NEEDED[level][0] if f not in offered]
    if missing and not (level == "vnni" and "avxvnni" in offered):
        raise BackendUnavailableError(f"cpu: {VARIABLE}={level}: this CPU does not offer {', '.join(missing)}")
    if level == "amx":
        raise BackendUnavailableError(f"cpu: {VARIABLE}=amx: there is no AMX kernel yet; use vnni")


def force(level: str) -> None:
    """Compile everything from now on for `level`; nothing where it is empty.

    Raises: BackendUnavailableError, also where numba has already compiled for another level in this process.
    """
    if not level:
        return
    offered = host_features()
    check(level, offered)
    wanted = NEEDED[level][1]
    if not wanted:
        return
    x86 = llvm.get_default_triple().startswith(("x86_64", "i686", "amd64"))
    settings = vars(config)
    settings["CPU_NAME"] = "generic"
    settings["CPU_FEATURES"] = ",".join(f"+{f}" for f in wanted) if x86 else ""
    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    if level_of(frozenset(f[1:] for f in features.split(",") if f.startswith("+"))) != level:
        raise BackendUnavailableError(
            f"cpu: {VARIABLE}={level}: numba already compiles for {name} in this process; set it at the start"
        )


def forced() -> str:
    return os.environ.get(VARIABLE, "")


def level_of(features: frozenset[str]) -> str:
    """The level of the code that these features allow."""
    if features & {"avx512vnni", "avxvnni"}:
        return "vnni"
    return "avx2" if "avx2" in features else "portable"


def describe(codegen: Any) -> str:
    """The level for people: where it was forced that is said."""
    from .compile import target_features

    found = level_of(target_features(codegen))
    return f"{found} (forced)" if forced() else found
