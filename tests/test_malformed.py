"""Models, records and baselines from strangers: a typed verdict each, in time, and nobody is hurt."""

from __future__ import annotations

import io
import itertools
import random
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from opgauge import isolation, model
from opgauge.reference_engine.errors import CaseError, ModelError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower

FEEDS = {"x": np.ones((2, 3), np.float32)}
LIMIT_S = 2.0
OPSET = 17


def info(name: str, elem: int = T.FLOAT, shape: object = (2, 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def built(*nodes: onnx.NodeProto, stored: dict[str, object] | None = None, opset: int = OPSET) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (stored or {}).items()]
    graph = helper.make_graph(list(nodes), "g", [info("x")], [info("y", shape=None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, inputs: str = "x", output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


def changed(change: Callable[[onnx.ModelProto], object], *nodes: onnx.NodeProto) -> bytes:
    made = built(*(nodes or (node("Relu"),)))
    change(made)
    return made.SerializeToString()


def one(
    op: str, inputs: str = "x", stored: dict[str, object] | None = None, opset: int = OPSET, **attributes: object
) -> bytes:
    return built(node(op, inputs, **attributes), stored=stored, opset=opset).SerializeToString()


def subgraph() -> onnx.GraphProto:
    return helper.make_graph([node("Relu", "x", "z")], "body", [], [info("z")])


def loop(made: onnx.ModelProto) -> None:
    body = helper.make_graph(
        [node("Identity", "c", "d")], "b", [info("i", T.INT64, ()), info("c", T.BOOL, ())], [info("d", T.BOOL, ())]
    )
    made.graph.initializer.append(numpy_helper.from_array(np.int64(2**62), "n"))
    made.graph.node.append(helper.make_node("Loop", ["n", ""], [], body=body))


def outside(path: str) -> Callable[[onnx.ModelProto], object]:
    def change(made: onnx.ModelProto) -> None:
        made.graph.node[0].CopyFrom(node("Add", "x w"))
        tensor = made.graph.initializer.add(name="w", data_type=T.FLOAT, dims=[2, 3], data_location=T.EXTERNAL)
        tensor.external_data.add(key="location", value=path)

    return change


def quantized(scale: object, zero_point: object = np.uint8(0)) -> bytes:
    return one("QuantizeLinear", "x s z", {"s": scale, "z": zero_point}, opset=13)


def doubling(made: onnx.ModelProto) -> None:
    del made.graph.node[:]
    made.graph.node.extend(node("Concat", f"{n} {n}", m, axis=0) for n, m in chain("x", 40))


def chain(first: str, count: int) -> Iterator[tuple[str, str]]:
    names = [first, *(f"t{i}" for i in range(count - 1)), "y"]
    return itertools.pairwise(names)


def raw(data_type: int, dims: list[int], data: bytes = b"") -> Callable[[onnx.ModelProto], object]:
    def change(made: onnx.ModelProto) -> None:
        made.graph.node[0].CopyFrom(node("Add", "x w"))
        made.graph.initializer.add(name="w", data_type=data_type, dims=dims, raw_data=data)

    return change


def input_dims(*dims: int) -> Callable[[onnx.ModelProto], object]:
    def change(made: onnx.ModelProto) -> None:
        made.graph.input[0].CopyFrom(info("x", T.FLOAT, dims))

    return change


F = np.float32
GOOD = built(node("Relu")).SerializeToString()
MALFORMED: dict[str, bytes] = {
    "empty file": b"",
    "random bytes": random.Random(0).randbytes(500),
    "truncated": GOOD[: len(GOOD) // 2],
    "trailing bytes": GOOD + b"\xff\xff\xff",
    "JSON": b'{"graph": {}}',
    "text": b"#!/bin/sh\nexit 0\n",
    "no graph": changed(lambda m: m.ClearField("graph")),
    "no opset": changed(lambda m: m.ClearField("opset_import")),
    "opset 999": one("Relu", opset=999),
    "opset 0": one("Relu", opset=0),
    "negative opset": one("Relu", opset=-3),
    "two opsets": changed(lambda m: m.opset_import.add(domain="", version=13)),
    "ir version 99": changed(lambda m: setattr(m, "ir_version", 99)),
    "unknown operator": one("Frobnicate"),
    "unknown domain": changed(lambda m: setattr(m.graph.node[0], "domain", "com.evil")),
    "unknown attribute": one("Relu", colour=3),
    "attribute of a wrong kind": one("Softmax", axis="last"),
    "attribute twice": changed(
        lambda m: m.graph.node[0].attribute.extend([helper.make_attribute("axis", 1)] * 2), node("Softmax")
    ),
    "attribute injection": one("Relu", __class__="x"),
    "self loop": one("Add", "x y"),
    "cycle": built(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b")).SerializeToString(),
    "value assigned twice": built(node("Relu"), node("Neg")).SerializeToString(),
    "input that nobody makes": one("Add", "x ghost"),
    "output that nobody makes": changed(lambda m: setattr(m.graph.output[0], "name", "ghost")),
    "no outputs": changed(lambda m: m.graph.ClearField("output")),
    "no nodes": changed(lambda m: m.graph.ClearField("node")),
    "too few inputs": one("Add", "x"),
    "too many inputs": one("Relu", "x x x"),
    "no inputs": one("Relu", ""),
    "too many outputs": built(node("Relu", "x", "y z")).SerializeToString(),
    "input without a type": changed(lambda m: m.graph.input[0].ClearField("type")),
    "input of type string": changed(lambda m: m.graph.input[0].CopyFrom(info("x", T.STRING))),
    "input of type 77": changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77)),
    "input of another type than fed": changed(lambda m: m.graph.input[0].CopyFrom(info("x", T.INT8))),
    "input of another shape than fed": changed(input_dims(5, 7)),
    "negative dimension": changed(input_dims(-1, 3)),
    "huge dimension": changed(input_dims(2**62, 3)),
    "initializer: short": changed(raw(T.FLOAT, [2, 3], bytes(8))),
    "initializer: long": changed(raw(T.FLOAT, [2, 3], bytes(80))),
    "initializer: negative dimension": changed(raw(T.FLOAT, [-2, -3], bytes(24))),
    "initializer: overflowing dimensions": changed(raw(T.FLOAT, [2**40, 2**40])),
    "initializer: type 0": changed(raw(0, [2, 3], bytes(24))),
    "initializer: type 200": changed(raw(200, [2, 3], bytes(24))),
    "initializer: strings": changed(raw(T.STRING, [1], b"abc")),
    "external data: above": changed(outside("../../../../etc/passwd")),
    "external data: absolute": changed(outside("/etc/passwd")),
    "external data: endless": changed(outside("/dev/zero")),
    "external data: beside": changed(outside("weights.bin")),
    "If": changed(
        lambda m: m.graph.node.append(
            helper.make_node("If", ["x"], ["q"], then_branch=subgraph(), else_branch=subgraph())
        )
    ),
    "Loop with 2^62 trips": changed(loop),
    "Scan": changed(
        lambda m: m.graph.node.append(helper.make_node("Scan", ["x"], ["q"], body=subgraph(), num_scan_inputs=1))
    ),
    "functions": changed(
        lambda m: m.functions.append(helper.make_function("d", "F", ["a"], ["b"], [node("Relu", "a", "b")], []))
    ),
    "40 doublings": changed(doubling),
    "Tile bomb": one("Tile", "x r", {"r": np.array([2**31, 2**31])}),
    "ConstantOfShape bomb": built(
        node("ConstantOfShape", "s"), stored={"s": np.array([2**20, 2**20])}
    ).SerializeToString(),
    "Expand bomb": one("Expand", "x s", {"s": np.array([2**20, 2**10, 2, 3])}),
    "Pad bomb": one("Pad", "x p", {"p": np.array([2**30, 2**30, 2**30, 2**30])}),
    "negative Tile": one("Tile", "x r", {"r": np.array([-1, 1])}),
    "Reshape to another size": one("Reshape", "x s", {"s": np.array([5, 5])}),
    "Reshape with two unknowns": one("Reshape", "x s", {"s": np.array([-1, -1])}),
    "Transpose: not a permutation": one("Transpose", perm=[0, 0]),
    "Transpose: out of range": one("Transpose", perm=[0, 7]),
    "Concat: axis out of range": one("Concat", "x x", axis=9),
    "Gather: index out of range": one("Gather", "x i", {"i": np.array([99])}),
    "Gather: float indices": one("Gather", "x i", {"i": F([1.0])}),
    "MatMul: shapes that do not fit": one("MatMul", "x x"),
    "Add: shapes that do not fit": one("Add", "x w", {"w": F([1, 2, 3, 4])}),
    "Add: types that do not fit": one("Add", "x w", {"w": np.int32([1])}),
    "Conv: group 0": one("Conv", "x w", {"w": np.ones((1, 1, 1), F)}, group=0),
    "Conv: rank": one("Conv", "x w", {"w": np.ones((1, 1, 1, 1), F)}),
    "MaxPool: no kernel": one("MaxPool"),
    "MaxPool: stride 0": one("MaxPool", kernel_shape=[2], strides=[0]),
    "scale NaN": quantized(F(np.nan)),
    "scale 0": quantized(F(0)),
    "scale infinite": quantized(F(np.inf)),
    "scale of a wrong length": quantized(F([1, 2, 3, 4]), np.uint8([0, 0, 0, 0])),
    "zero point of a wrong length": quantized(F(1), np.uint8([0, 0])),
    "zero point of a wrong type": quantized(F(1), F(0)),
    "node name of 10 MB": changed(lambda m: setattr(m.graph.node[0], "name", "<script>" * (10 << 17))),
    "attribute of 1,000,000 axes": one("Transpose", perm=list(range(10**6))),
    "30,000 nodes": built(*(node("Relu", a, b) for a, b in chain("x", 30_000))).SerializeToString(),
}


def run(data: bytes) -> None:
    evaluate(lower(data, FEEDS), FEEDS)


def test_there_are_many_and_the_control_is_honest() -> None:
    assert len(MALFORMED) >= 60
    run(GOOD)


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """What the reference worker may use at most, so that a bomb is an error here too."""
    isolation.limit_memory(6 << 30)
    yield
    isolation.limit_memory(0)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_model_is_a_typed_verdict_in_time(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(ModelError) as refused:
        run(MALFORMED[name])
    assert time.monotonic() - start < LIMIT_S
    assert str(refused.value)
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("kind", ["pickle", "bomb", "other names", "lying size", "not a zip"])
def test_arrays_from_strangers_are_refused_before_they_are_unpacked(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    stream = io.BytesIO()
    if kind == "pickle":
        np.savez(stream, x=np.array([None], object))
    elif kind == "bomb":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", bytes(50 << 20))
    elif kind == "other names":
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("../x.npy", b"")
    elif kind == "lying size":
        np.savez(stream, x=np.zeros(3, np.float32))
    path.write_bytes(stream.getvalue()[:-30] if kind == "lying size" else stream.getvalue() or b"PK")
    with pytest.raises((ValueError, zipfile.BadZipFile, CaseError)):
        model.read_arrays(path, {"x": np.dtype(np.float32)}, 1 << 20)
