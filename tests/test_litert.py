"""LiteRT as a backend: the file that our builder writes, what it refuses, and what the runtime makes of it."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator

import flatbuffers.table
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from opgauge import environment, instead, model
from opgauge.backends import litert_builder, litert_net, litert_plan, resolve
from opgauge.backends.litert_builder import Operator, Quantization, Tensor
from opgauge.client import Client
from opgauge.oracles import judge
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Policy, Status

RELEASE = "litert==2.3.0"
CONV = (
    "QLinearConv/int8,int8/op13/x=int8:1x{c}x5x6:uniform/x_scale!=float32:-:0.5/x_zero_point!=int8:-:3"
    "/w!=int8:{m}x{k}x3x2:uniform/w_scale!=float32:-:0.25/w_zero_point!=int8:-:{zero}"
    "/y_scale!=float32:-:8/y_zero_point!=int8:-:-4/B!=int32:{m}:near@0@40/@pads=I:1,0,1,1/@group=i:{group}"
    "/y=int8/plain/s7"
)
DENSE = CONV.format(c=4, m=5, k=4, zero=0, group=1)
MATMUL = (
    "QLinearMatMul/int8,int8/op13/a=int8:5x9:uniform/a_scale!=float32:-:0.5/a_zero_point!=int8:-:{a_zero}"
    "/b{bang}=int8:9x7:uniform/b_scale!=float32:-:0.25/b_zero_point!=int8:-:{b_zero}"
    "/y_scale!=float32:-:64/y_zero_point!=int8:-:1/y=int8/plain/s3"
)
PICKED = (
    "opgauge::QDQ.Transpose/uint8/op13/x=uint8:1x1:{x}/x_scale!=float32:-:1/x_zero_point!=uint8:-:0"
    "/y_scale!=float32:-:{y_scale}/y_zero_point!=uint8:-:0/@perm=I:1,0/y=uint8/plain/s0"
)


def planned(case_id: str, xnnpack: bool = True) -> litert_net.Plan:
    return litert_plan.plan(*model.build(parse_id(case_id)[0]), xnnpack)


# ---- the file


class Table:
    """A FlatBuffers table, read by field numbers."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.table = data, flatbuffers.table.Table(data, at)

    def _at(self, slot: int) -> int:
        offset = self.table.Offset(4 + 2 * slot)
        return offset + self.table.Pos if offset else 0

    def scalar(self, slot: int, form: str) -> int | float:
        at = self._at(slot)
        return struct.unpack_from("<" + form, self.data, at)[0] if at else 0

    def list(self, slot: int, form: str) -> list[float]:
        offset = self.table.Offset(4 + 2 * slot)
        first, count = self.table.Vector(offset), self.table.VectorLen(offset)
        return list(struct.unpack_from(f"<{count}{form}", self.data, first))

    def tables(self, slot: int) -> list[Table]:
        offset = self.table.Offset(4 + 2 * slot)
        first, count = self.table.Vector(offset), self.table.VectorLen(offset)
        return [Table(self.data, self.table.Indirect(first + 4 * i)) for i in range(count)]

    def child(self, slot: int) -> Table:
        return Table(self.data, self.table.Indirect(self._at(slot)))


def root(data: bytes) -> Table:
    return Table(data, struct.unpack_from("<I", data)[0])


def test_a_file_has_the_identifier_and_the_fields_of_the_schema() -> None:
    weights = np.arange(6, dtype=np.int8).reshape(2, 3)
    tensors = [
        Tensor("x", "int8", (1, 3), None, Quantization((0.5,), (3,))),
        Tensor("w", "int8", (2, 3), weights, Quantization((0.5, 2.0), (0, 0), 0)),
        Tensor("y", "int8", (1, 2), None, Quantization((4.0,), (-7,))),
    ]
    operators = [Operator("FULLY_CONNECTED", (0, 1, -1), (2,), {"keep_num_dims": True})]
    data = litert_builder.write(tensors, operators, [0], [2])
    assert data[4:8] == b"TFL3"
    read = root(data)
    assert read.scalar(0, "I") == 3
    (code,) = read.tables(1)
    assert (code.scalar(0, "b"), code.scalar(3, "i")) == (9, 9)
    (graph,) = read.tables(2)
    x, w, y = graph.tables(0)
    assert [t.list(0, "i") for t in (x, w, y)] == [[1, 3], [2, 3], [1, 2]]
    assert (x.scalar(1, "b"), x.scalar(2, "I")) == (9, 0)
    assert w.child(4).list(2, "f") == [0.5, 2.0]
    assert y.child(4).list(3, "q") == [-7]
    buffers = read.tables(4)
    assert bytes(v % 256 for v in buffers[int(w.scalar(2, "I"))].list(0, "b")) == weights.tobytes()
    (op,) = graph.tables(3)
    assert (op.list(1, "i"), op.list(2, "i"), op.scalar(3, "B")) == ([0, 1, -1], [2], 8)
    assert op.child(4).scalar(2, "?") is True
    assert (graph.list(1, "i"), graph.list(2, "i")) == ([0], [2])


def test_a_code_beyond_a_byte_is_written_in_the_newer_field() -> None:
    tensors = [Tensor("x", "float32", (2,)), Tensor("y", "int8", (2,), None, Quantization((1.0,), (0,)))]
    for kind, old in (("QUANTIZE", 114), ("BATCH_MATMUL", 126)):
        data = litert_builder.write(tensors, [Operator(kind, (0,), (1,))], [0], [1])
        assert root(data).tables(1)[0].scalar(0, "b") == old
    assert max(kind.code for kind in litert_builder.KINDS.values()) < 127  # no row needs more; `_code` would


def test_an_element_type_that_the_schema_has_not_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no element type bfloat16"):
        litert_builder.write([Tensor("x", "bfloat16", (1,))], [], [0], [0])


# ---- the plan


@pytest.mark.parametrize(
    ("case_id", "kinds"),
    [
        (DENSE, ("PAD", "CONV_2D")),
        (CONV.format(c=4, m=8, k=1, zero=0, group=4), ("PAD", "DEPTHWISE_CONV_2D")),
        (CONV.format(c=4, m=6, k=2, zero=0, group=2), ("PAD", "CONV_2D")),
        (MATMUL.format(a_zero=3, bang="!", b_zero=0), ("FULLY_CONNECTED",)),
        (MATMUL.format(a_zero=3, bang="", b_zero=0), ("BATCH_MATMUL",)),
        (MATMUL.format(a_zero=3, bang="!", b_zero=5), ("BATCH_MATMUL",)),
        (PICKED.format(x=5, y_scale=1), ("TRANSPOSE",)),
        (PICKED.format(x=5, y_scale=3), ("TRANSPOSE", "QUANTIZE")),
    ],
)
def test_what_an_operator_becomes(case_id: str, kinds: tuple[str, ...]) -> None:
    assert planned(case_id).kinds == kinds


@pytest.mark.parametrize(
    ("case_id", "reason"),
    [
        (CONV.format(c=4, m=5, k=4, zero=2, group=1), "int8 weights with a zero point"),
        (DENSE.replace("x_scale!=float32:-:0.5", "x_scale!=float32:-:-0.5"), "a scale that is not positive"),
        ("MatMulInteger/int8,int8/op13/A=int8:2x3:uniform/B=int8:3x2:uniform/y=int32/plain/s0", "MatMulInteger: "),
        ("Add/float64/op13/A=float64:2:1,2/B=float64:2:1,2/y=float64/plain/s0", "Add of float64"),
        ("Clip/float32/op13/input=float32:2:1,2/min!=float32:-:0/y=float32/plain/s0", "does not say what"),
    ],
)
def test_what_litert_cannot_say_is_unsupported_with_the_reason(case_id: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        planned(case_id)


def test_a_region_that_litert_has_no_kernel_for_is_written_node_by_node() -> None:
    region = (
        "opgauge::QDQ.AveragePool/int8/op13/x=int8:1x2x4x4:uniform/x_scale!=float32:-:1/x_zero_point!=int8:-:0"
        "/y_scale!=float32:-:{}/y_zero_point!=int8:-:0/@kernel_shape=I:2,2/y=int8/plain/s0"
    )
    assert planned(region.format(1)).kinds == ("AVERAGE_POOL_2D",)
    assert planned(region.format(2)).kinds == ("DEQUANTIZE", "TRANSPOSE", "AVERAGE_POOL_2D", "TRANSPOSE", "QUANTIZE")


def test_images_are_fed_as_nhwc_and_constants_stay_constants() -> None:
    plan = planned(DENSE)
    (feed,) = plan.feeds
    assert (feed.name, feed.perm, feed.shape) == ("x", (0, 2, 3, 1), (1, 4, 5, 6))
    x = np.arange(120, dtype=np.int8).reshape(1, 4, 5, 6)
    fed = litert_net.prepared(feed, x)
    assert fed.shape == (1, 5, 6, 4)
    np.testing.assert_array_equal(litert_net.fetched(litert_net.Made(0, x.shape, litert_net.LAST), fed), x)


def test_a_bias_of_another_scale_is_not_given_to_a_kernel_that_ignores_it() -> None:
    region = (
        "opgauge::QDQ.Conv/int8,int8/op13/x=int8:1x2x4x4:uniform/x_scale!=float32:-:0.5/x_zero_point!=int8:-:0"
        "/w!=int8:3x2x1x1:uniform/w_scale!=float32:-:0.25/w_zero_point!=int8:-:0/bias!=int32:3:near@0@9"
        "/bias_scale!=float32:-:{}/y_scale!=float32:-:8/y_zero_point!=int8:-:0/y=int8/plain/s0"
    )
    assert planned(region.format(0.125)).kinds == ("CONV_2D",)
    with pytest.raises(UnsupportedError, match="a bias whose scale is not x_scale \\* w_scale"):
        planned(region.format(0.25))


# ---- what it computes instead


@pytest.mark.parametrize(
    ("name", "x", "y_scale", "exact", "told"),
    [
        ("multiplier-of-16-bits", 200, 3, 67, 66),  # 200 * 85/256 = 66.4
        ("multiplier-of-16-bits", 250, 3, 83, 83),  # 83.01: no other answer here
        ("rounded-twice", 64, 3, 21, 22),  # 42.67 halves, 43 of them, 21.5
        ("rounded-twice", 65, 3, 22, 22),
    ],
)
def test_requantization_of_litert_in_numbers(name: str, x: int, y_scale: float, exact: int, told: int) -> None:
    data, feeds = model.build(parse_id(PICKED.format(x=x, y_scale=y_scale))[0])
    (right,) = evaluate(lower(data, feeds), feeds)
    (other,) = instead.exacts(name, data, feeds, Policy())
    assert (int(right.value.item()), int(other.lo.item()), int(other.hi.item())) == (exact, told, told)


# ---- the runtime


@pytest.fixture(scope="module")
def runtime() -> Iterator[Client]:
    try:
        environment.python_of(resolve(RELEASE))
    except BackendUnavailableError as error:
        pytest.skip(f"{RELEASE} cannot be installed here: {error}")
    with Client(resolve(RELEASE)) as client:
        yield client


def verdict(client: Client, case_id: str) -> tuple[Status, str]:
    data, feeds = model.build(parse_id(case_id)[0])
    client.submit("case", data, feeds)
    seen = client.receive()
    if seen.status is not Status.PASS:
        return seen.status, seen.message
    found = judge(evaluate(lower(data, feeds), feeds, client.spec.policy), seen, client.spec.policy)
    return found.status, found.message


@pytest.mark.parametrize(
    "case_id",
    [
        DENSE,
        CONV.format(c=4, m=8, k=1, zero=0, group=4),
        CONV.format(c=4, m=6, k=2, zero=0, group=2),
        MATMUL.format(a_zero=3, bang="!", b_zero=0),
        MATMUL.format(a_zero=3, bang="", b_zero=5),
        "Conv/float32/op13/X=float32:1x3x7:normal/W!=float32:4x3x2:normal/@strides=I:2/@pads=I:1,0/y=float32/plain/s1",
        "MaxPool/float32/op13/X=float32:1x2x5x5:normal/@kernel_shape=I:2,2/@ceil_mode=i:1/@strides=I:2,2/y=float32/plain/s1",
        "Softmax/float32/op13/input=float32:2x5x3:normal/@axis=i:1/y=float32/plain/s1",
    ],
)
def test_the_runtime_computes_what_the_operator_means(runtime: Client, case_id: str) -> None:
    assert verdict(runtime, case_id) == (Status.PASS, "")


def test_a_wrong_file_is_seen(runtime: Client) -> None:
    """The same case with a zero point one off in the model: the judge must not look away."""
    wrong = DENSE.replace("y_zero_point!=int8:-:-4", "y_zero_point!=int8:-:-5")
    data, feeds = model.build(parse_id(wrong)[0])
    right, _ = model.build(parse_id(DENSE)[0])
    runtime.submit("case", data, feeds)
    seen = runtime.receive()
    assert judge(evaluate(lower(right, feeds), feeds, runtime.spec.policy), seen, runtime.spec.policy).status is (
        Status.FAIL
    )


def test_the_two_kinds_of_kernels_disagree_where_a_multiplier_is_coarse(runtime: Client) -> None:
    data, feeds = model.build(parse_id(PICKED.format(x=64, y_scale=3))[0])
    found = []
    for words in ("", ":kernels=reference"):
        with Client(resolve(RELEASE + words)) as client:
            client.submit("case", data, feeds)
            found.append(int(client.receive().outputs[0].item()))
    assert found == [21, 22]


def test_the_builder_has_the_numbers_of_the_runtimes_own_schema(runtime: Client) -> None:
    names = "BuiltinOperator", "BuiltinOptions", "TensorType"
    tables = ", ".join(f"dict(vars(s.{name}))" for name in names)
    code = "import json\nfrom ai_edge_litert import schema_py_generated as s\n"
    code += f"print(json.dumps([{tables}], default=lambda o: None))"
    python = environment.python_of(resolve(RELEASE))
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    codes, options, types = json.loads(said.stdout)
    assert {name: codes[name] for name in litert_builder.KINDS} == {n: k.code for n, k in litert_builder.KINDS.items()}
    numbers = set(options.values())
    assert {k.options for k in litert_builder.KINDS.values()} <= numbers
    assert {w: types[w.upper()] for w in litert_builder.TYPES} == litert_builder.TYPES


def test_an_initializer_that_nobody_reads_is_left_out(runtime: Client) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
    unused = numpy_helper.from_array(np.zeros(1), "unused")
    graph = helper.make_graph([node], "g", info[:1], info[1:], [unused])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    runtime.submit("case", data.SerializeToString(), {"x": np.array([-1, 2], np.float32)})
    np.testing.assert_array_equal(runtime.receive().outputs[0], [0, 2])
