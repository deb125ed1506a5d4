"""Run-time inputs for a whole model: given in a file, or drawn within ranges that its names and types suggest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import CaseError, DtypeError
from opgauge.reference_engine.types import Array

DEFAULT_DIM = 1
MODEL_LIMIT = 1 << 30


def read_model(path: Path) -> bytes:
    """Raises: CaseError for a file that is not there or is larger than protobuf reads."""
    try:
        if path.stat().st_size > MODEL_LIMIT:
            raise CaseError(f"{path} has {path.stat().st_size} bytes, more than {MODEL_LIMIT}")
        return path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: {error}") from error


def wanted(model: onnx.ModelProto) -> dict[str, tuple[str, list[int | str]]]:
    """(element type, dimensions) of each run-time input; an unknown dimension is its name or `?`.

    Raises: CaseError for an input that is no tensor.
    """
    stored = {t.name for t in model.graph.initializer}
    found: dict[str, tuple[str, list[int | str]]] = {}
    for info in model.graph.input:
        if info.name in stored:
            continue
        if info.type.WhichOneof("value") != "tensor_type":
            raise CaseError(f"input {info.name!r} is no tensor: only tensors can be fed")
        tensor = info.type.tensor_type
        try:
            word = dt.word_of_onnx(tensor.elem_type)
        except DtypeError as error:
            raise CaseError(f"input {info.name!r}: {error}") from error
        dims: list[int | str] = [
            d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim
        ]
        found[info.name] = word, dims
    return found


def draw(
    model: onnx.ModelProto,
    dims: Mapping[str, int],
    values: Mapping[str, float],
    seed: int,
    spread: Mapping[str, float] | None = None,
) -> dict[str, Array]:
    """One tensor for each input.

    `dims` binds a dimension by its name, or as `input.axis`; others are 1. `values` fixes a whole input to
    one number; else floats are normal with the deviation `spread` (1), bytes uniform, other integers small.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    feeds = {}
    for name, (word, shape) in wanted(model).items():
        sizes = tuple(
            d if isinstance(d, int) else int(dims.get(f"{name}.{i}", dims.get(str(d), DEFAULT_DIM)))
            for i, d in enumerate(shape)
        )
        kind = dt.numpy_dtype(word)
        if name in values:
            feeds[name] = np.full(sizes, values[name], kind)
        elif dt.is_float(word):
            feeds[name] = (rng.standard_normal(sizes) * (spread or {}).get(name, 1.0)).astype(kind)
        elif word in ("int8", "uint8"):
            low, high = dt.limits(word)
            feeds[name] = rng.integers(low, high + 1, sizes).astype(kind)
        else:
            feeds[name] = rng.integers(0, 2 if word == "bool" else 100, sizes).astype(kind)
    return feeds


def load_inputs(path: Path, model: onnx.ModelProto) -> dict[str, Array]:
    """The arrays of an .npz, by input name. Raises: CaseError."""
    from .model import read_arrays

    try:
        return read_arrays(path, {name: dt.numpy_dtype(word) for name, (word, _) in wanted(model).items()}, MODEL_LIMIT)
    except (OSError, ValueError) as error:
        raise CaseError(f"{path}: {error}") from error
