"""ONNX's own node tests as subjects: those whose every operator is lowered."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.types import Array

# Stored outputs that contradict the documentation of their operator, and why (onnx/onnx#2462 calls it intended;
# runtimes leave these tests out).
STORED_WRONG = dict.fromkeys(
    ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    "length_resized was taken to be 4 * 0.6, not the 2 elements that there are",
)
# Stored outputs that are not what their test computes, and why.
STORED_DEVIATIONS = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": "the stored outputs were written by hand with four digits",
    **STORED_WRONG,
}


FORMAT = 1


@dataclass(frozen=True)
class NodeTest:
    """One test: model, inputs, and the outputs that ONNX stores with its tolerance."""

    name: str
    op: str
    model: bytes
    inputs: dict[str, Array]
    outputs: tuple[Array, ...]
    rtol: float
    atol: float


@dataclass(frozen=True)
class NodeTests:
    """`tests` are those on lowered operators; `total` counts all that are not expansions of functions."""

    tests: tuple[NodeTest, ...]
    total: int
    skipped: tuple[tuple[str, str], ...]


def collected(lowered: Collection[tuple[str, str]], folder: Path | None) -> NodeTests:
    """`collect`, kept in `folder`: the file's name holds onnx's version and the operators that are lowered.

    The file is this program's own; one that cannot be read is made again.
    """
    if folder is None:
        return collect(lowered)
    key = hashlib.sha256(repr((onnx.__version__, np.__version__, sorted(lowered), FORMAT)).encode()).hexdigest()[:16]
    path = folder / f"onnx-node-{key}.pickle"
    try:
        return pickle.loads(path.read_bytes())
    except (OSError, EOFError, AttributeError, TypeError, pickle.UnpicklingError):
        found = collect(lowered)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(found))
        part.replace(path)
    return found


def collect(lowered: Collection[tuple[str, str]], names: Collection[str] = ()) -> NodeTests:
    """All node tests of the installed onnx whose operators are in `lowered` ((domain, op_type) pairs).

    Takes about ten seconds: onnx computes its tests when they are collected.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = [c for c in load_model_tests(kind="node") if "_expanded" not in c.name]
    found, skipped = [], []
    for case in cases:
        if names and case.name not in names:
            continue
        assert case.model is not None
        operators = {(node.domain, node.op_type) for node in case.model.graph.node}
        if not operators <= set(lowered):
            continue
        if reason := _unusable(case):
            skipped.append((case.name, reason))
            continue
        found.append(_node_test(case))
    return NodeTests(tuple(found), len(cases), tuple(skipped))


def _unusable(case: onnx.backend.test.case.test_case.TestCase) -> str:
    """Why a test on lowered operators cannot be a case of tensors, or an empty string."""
    assert case.data_sets is not None
    values = [v for side in case.data_sets[0] for v in side]
    if kinds := sorted(
        {type(v).__name__ for v in values if not isinstance(v, np.ndarray | np.generic | onnx.TensorProto)}
    ):
        return f"holds {', '.join(kinds)}, not tensors"
    types = {v.data_type for v in values if isinstance(v, onnx.TensorProto)}
    words = {str(np.dtype(v.dtype)) for v in values if not isinstance(v, onnx.TensorProto) and v.dtype not in dt.WORD}
    unknown = words | {onnx.TensorProto.DataType.Name(t) for t in types if t not in dt.NAME}
    return f"element type {', '.join(sorted(unknown))}" if unknown else ""


def _array(value: Array | onnx.TensorProto) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _node_test(case: onnx.backend.test.case.test_case.TestCase) -> NodeTest:
    assert case.model is not None
    assert case.data_sets is not None
    inputs, outputs = case.data_sets[0]
    names = [i.name for i in case.model.graph.input]
    return NodeTest(
        case.name,
        case.model.graph.node[-1].op_type,
        case.model.SerializeToString(),
        {name: _array(v) for name, v in zip(names, inputs, strict=True)},
        tuple(_array(v) for v in outputs),
        case.rtol,
        case.atol,
    )
