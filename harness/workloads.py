"""What is timed, on which side, and whether two sides can differ at all: equal work is not timed."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opgauge.backends import OURS, BackendSpec, resolve
from opgauge.reference_engine.types import Array


@dataclass(frozen=True)
class Workload:
    """What is timed: a model with its inputs, and its name in reports."""

    name: str
    model: bytes
    inputs: Mapping[str, Array]


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    `backend` as the command line spells it (`cpu`, `onnxruntime==1.24.4:level=basic`, `path.py:run`). `python` is the
    interpreter of another checkout of opgauge, whose own `cpu` it then is. `threads` is how many cores it may use,
    `variables` are added to its environment, `build` names what else tells it from another (a commit, say).
    """

    backend: str
    python: str = ""
    threads: int = 1
    variables: tuple[tuple[str, str], ...] = ()
    build: str = ""

    @property
    def spec(self) -> BackendSpec:
        return resolve(self.backend)


def workload(case: str | Workload, seed: int = 0) -> Workload:
    """A case id, a saved case, a built-in network or a model file. Raises: CaseError, ModelError."""
    if isinstance(case, Workload):
        return case
    from opgauge.reference_engine.case import parse_id

    from . import model, models
    from .model_jobs import Job

    if case.endswith((".json", ".npz")):
        data, feeds, meta = model.load_saved(Path(case))
        return Workload(meta["id"], data, feeds)
    if "/" in case and not case.endswith(".onnx"):
        parsed, _ = parse_id(case)
        return Workload(case, *model.build(parsed))
    loaded = models.load(Job(case, seed=seed))
    return Workload(loaded.title, loaded.data, loaded.feeds)


_BUILD = """
import hashlib, json, sys
from importlib import metadata, util
from pathlib import Path
rooms, packages = json.loads(sys.argv[1])
digest = hashlib.sha256(sys.version.encode())
for room in rooms:
    spec = util.find_spec(room)
    for place in map(Path, spec.submodule_search_locations or [spec.origin]):
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix in (".py", ".wgsl"))
        for file in files:
            digest.update(file.name.encode() + b"\\0" + file.read_bytes())
for name in packages:
    try:
        digest.update(f"{name} {metadata.version(name)}".encode())
    except metadata.PackageNotFoundError:
        pass
print(digest.hexdigest())
"""
_PACKAGES = ("numpy", "ml_dtypes", "onnx", "onnxruntime", "openvino", "numba", "llvmlite", "wgpu")


@functools.cache
def _build(side: Side) -> str:
    """A hash of the code that a side runs; empty where it cannot be told.

    Our engines: the sources of their room and of the reference engine. Others: the adapter and the installed version.
    """
    spec = side.spec
    if spec.kind == "callable" or spec.kind == "native" or spec.kind == "fault":
        path = Path(spec.target.rpartition(":")[0])
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not spec.environment else ""
    if spec.environment:
        return spec.environment if spec.environment.startswith("==") else ""
    rooms = [spec.target, *(("opgauge.reference_engine",) if spec.target.rpartition(".")[2] in OURS else ())]
    command = [side.python or sys.executable, "-P", "-c", _BUILD, json.dumps([rooms, _PACKAGES])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def identity(side: Side, work: Workload) -> str:
    """A hash of all that decides how long the case takes: model, feeds, options, kernels, build.

    Unique where the build cannot be told, unless the very same side is compared.
    """
    spec = side.spec
    digest = hashlib.sha256(work.model)
    for name, x in sorted(work.inputs.items()):
        digest.update(f"{name} {x.dtype} {x.shape}".encode() + np.asarray(x).tobytes())
    build = _build(side) or repr((side.backend, side.python, side.build))
    options = repr((spec.kind, spec.name, spec.options, side.threads, side.variables, side.build, build))
    return digest.hexdigest() + hashlib.sha256(options.encode()).hexdigest()
