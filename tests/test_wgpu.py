"""The wgpu engine: bits, traps of software devices, counts, and what becomes of a lost device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from opgauge.backends import RunResult, cpu
from opgauge.backends import wgpu as backend
from opgauge.backends.wgpu import pointwise, reduce
from opgauge.backends.wgpu.plan import Dispatch, bind
from opgauge.oracles import judge
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.emit import Emitter, Value
from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.executor import execute, finder, plan
from opgauge.reference_engine.types import Array, Graph, Observation, Policy, Status, TensorSpec

dispatch = pytest.importorskip("opgauge.backends.wgpu.dispatch", exc_type=ImportError)

FIND = finder(backend.kernels())
CPU = finder(cpu.kernels())


@pytest.fixture(scope="module")
def engine() -> backend.Engine:
    try:
        made = backend.load()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    return made


def draw(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Any bits for integers, small whole numbers (exact in any order) for floats."""
    rng = np.random.default_rng([seed, *shape])
    n, kind = int(np.prod(shape)), dt.numpy_dtype(dtype)
    if dt.is_float(dtype):
        return rng.integers(-8, 9, n).astype(kind).reshape(shape)
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(bool).reshape(shape)
    return rng.integers(0, 256, n * kind.itemsize).astype(np.uint8).view(kind).reshape(shape)


def primitive(name: str, fn: str, *arrays: Array, **attrs: object) -> tuple[Graph, dict[str, Array]]:
    emit, feeds = Emitter(source="test"), {f"x{i}": a for i, a in enumerate(arrays)}
    for key, array in feeds.items():
        emit.specs[key] = TensorSpec(array.shape, dt.word_of(array.dtype))
    out = emit(name, *(Value(key, emit.specs[key]) for key in feeds), fn=fn, **attrs)
    return Graph(tuple(emit.nodes), tuple(feeds), (out.name,), ("y",), emit.specs, emit.constants), feeds


def on_gpu(
    engine: backend.Engine,
    graph: Graph,
    feeds: dict[str, Array],
    poison: bytes = b"",
    mutate: tuple[str, str] = ("", ""),
) -> RunResult:
    """Run a graph; `poison` first fills every buffer, `mutate` replaces text of every shader."""
    program = bind(graph, FIND, engine.device.limit)
    if mutate[0]:
        assert any(mutate[0] in s.code for s in program.steps if isinstance(s, Dispatch)), "the mutant changes nothing"
        steps = tuple(replace(s, code=s.code.replace(*mutate)) if isinstance(s, Dispatch) else s for s in program.steps)
        program = replace(program, steps=steps)
    acquire = dispatch.acquire

    def poisoned(device, size):
        buffer = acquire(device, size)
        device.gpu.queue.write_buffer(buffer, 0, poison * buffer.size)
        return buffer

    with pytest.MonkeyPatch.context() as patch:
        if poison:
            patch.setattr(dispatch, "acquire", poisoned)
        loaded = dispatch.load_program(engine.device, program)
    result = dispatch.run_program(engine.device, loaded, feeds)
    dispatch.unload(engine.device, loaded)
    return result


def gpu_and_cpu(engine: backend.Engine, name: str, fn: str, *arrays: Array, **attrs: object) -> tuple[Array, Array]:
    graph, feeds = primitive(name, fn, *arrays, **attrs)
    (actual,) = on_gpu(engine, graph, feeds, b"\xff").outputs
    (expected,) = execute(plan(graph, CPU, "cpu"), feeds)
    return actual, expected


def same_bits(actual: Array, expected: Array) -> bool:
    return actual.dtype == expected.dtype and actual.shape == expected.shape and actual.tobytes() == expected.tobytes()


def model(*nodes: onnx.NodeProto, inputs: dict[str, Array], **initializers: Array) -> bytes:
    infos = [helper.make_tensor_value_info(n, dt.ONNX[dt.word_of(a.dtype)], a.shape) for n, a in inputs.items()]
    held = [onnx.numpy_helper.from_array(a, n) for n, a in initializers.items()]
    graph = helper.make_graph(list(nodes), "g", infos, [onnx.ValueInfoProto(name="y")], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def node(op: str, inputs: str, output: str = "y", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


@pytest.mark.parametrize(("a", "b"), [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
def test_products_of_bytes_are_the_cpus_bit_for_bit(engine, a, b):
    for m, k, n in ((1, 1, 1), (9, 7, 5), (3, 130, 17)):
        zero_points = draw(a, (m, 1), 1), draw(b, (1, n), 2)
        assert same_bits(*gpu_and_cpu(engine, "Gemm", "", draw(a, (m, k)), draw(b, (k, n)), *zero_points))
    stacks = draw(a, (2, 1, 3, 6)), draw(b, (3, 6, 5)), draw(a, ()), draw(b, (3, 1, 5))
    assert same_bits(*gpu_and_cpu(engine, "Gemm", "", *stacks))


def test_a_flipped_sign_of_a_zero_point_is_seen(engine):
    shapes = ("uint8", (4, 9)), ("int8", (9, 4)), ("uint8", ()), ("int8", ())
    graph, feeds = primitive("Gemm", "", *(draw(*shape) for shape in shapes))
    (expected,) = execute(plan(graph, CPU, "cpu"), feeds)
    (right,) = on_gpu(engine, graph, feeds).outputs
    (wrong,) = on_gpu(engine, graph, feeds, mutate=("- p[8]);", "+ p[8]);")).outputs
    assert same_bits(right, expected)
    assert not same_bits(wrong, expected)


def test_the_plain_dot_product_gives_what_the_packed_one_gives(engine):
    graph, feeds = primitive("Gemm", "", draw("int8", (4, 9)), draw("int8", (9, 4)), draw("int8", ()), draw("int8", ()))
    (packed,) = on_gpu(engine, graph, feeds).outputs
    kept, engine.device.packed_dot = engine.device.packed_dot, False
    engine.device.pipelines.clear()
    try:
        (plain,) = on_gpu(engine, graph, feeds).outputs
    finally:
        engine.device.packed_dot = kept
        engine.device.pipelines.clear()
    assert same_bits(plain, packed)


@pytest.mark.parametrize("n", range(1, 8))
def test_tails_of_one_to_seven_bytes_are_whole_and_alone(engine, n):
    for dtype in ("int8", "uint16"):
        assert same_bits(*gpu_and_cpu(engine, "Elementwise", "add", draw(dtype, (n,)), draw(dtype, (n,), 1)))
        assert same_bits(
            *gpu_and_cpu(engine, "DataMove", "slice", draw(dtype, (n,)), starts=(n - 1,), ends=(-1,), steps=(-1,))
        )
    parts = [draw("uint8", (n,), 1), draw("uint8", (1,), 2), draw("uint8", (0,)), draw("uint8", (n,), 3)]
    assert same_bits(*gpu_and_cpu(engine, "DataMove", "concat", *parts, axis=0))


def test_empty_and_scalar_tensors_are_right(engine):
    f = np.float32
    assert same_bits(*gpu_and_cpu(engine, "Elementwise", "add", f([]), f([])))
    assert same_bits(*gpu_and_cpu(engine, "Elementwise", "add", f(2), f(3)))
    assert same_bits(*gpu_and_cpu(engine, "Gemm", "", np.ones((2, 0), f), np.ones((0, 3), f)))
    for fn in ("sum", "max", "min"):
        assert same_bits(*gpu_and_cpu(engine, "Reduce", fn, np.ones((3, 0), f)))
    assert same_bits(*gpu_and_cpu(engine, "DataMove", "concat", f([]), f([1, 2]), axis=0))
    assert same_bits(
        *gpu_and_cpu(engine, "DataMove", "pad", np.ones((0, 2), f), f(7), pads=(1, 0, 1, 0), mode="constant")
    )
    empty = np.ones((1, 1, 0), f)
    window = {"kernel_shape": (2,), "strides": (1,), "dilations": (1,), "pads": (1, 1), "out_shape": (1,)}
    assert same_bits(*gpu_and_cpu(engine, "Im2col", "", empty, f(5), **window))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
def test_moves_are_the_cpus_bit_for_bit(engine, dtype):
    x, value = draw(dtype, (2, 3, 5)), draw(dtype, (), 1)
    moves = [
        ("transpose", [x], {"perm": (2, 0, 1)}),
        ("expand", [x[:, :1]], {"shape": (2, 4, 5)}),
        ("slice", [x], {"starts": (1, 0, 4), "ends": (-1, 3, 0), "steps": (-1, 2, -2)}),
        ("pad", [x, value], {"pads": (1, -1, 2, 0, 3, -1), "mode": "constant"}),
        ("pad", [x, value], {"pads": (0, 2, 4, 1, 1, 3), "mode": "reflect"}),
        ("pad", [x, value], {"pads": (1, 0, 2, 0, 3, -1), "mode": "edge"}),
        ("pad", [x, value], {"pads": (1, 0, 2, 0, 3, 4), "mode": "wrap"}),
        ("concat", [x, x[:, :2], x[:, :0]], {"axis": 1}),
        ("copy", [x], {}),
    ]
    for fn, arrays, attrs in moves:
        assert same_bits(*gpu_and_cpu(engine, "DataMove", fn, *map(np.ascontiguousarray, arrays), **attrs)), fn
    assert same_bits(*gpu_and_cpu(engine, "Gather", "", x, np.array([0, -1, 2, -3])))
    window = {"kernel_shape": (3, 2), "strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 1, 2), "out_shape": (2, 5)}
    assert same_bits(*gpu_and_cpu(engine, "Im2col", "", draw(dtype, (2, 3, 4, 5)), value, **window))


def test_more_workgroups_than_one_dimension_allows_are_spread(engine):
    x = np.arange(65_535 * 64 + 70, dtype=np.float32)
    graph, feeds = primitive("DataMove", "copy", x)
    (right,) = on_gpu(engine, graph, feeds).outputs
    assert same_bits(right, x)
    (wrong,) = on_gpu(engine, graph, feeds, b"\xff", ("group.y * groups.x + group.x", "group.x")).outputs
    assert not same_bits(wrong, x)


def test_the_sum_of_200_000_ones_is_right(engine):
    assert on_gpu(engine, *primitive("Reduce", "sum", np.ones((1, 200_000), np.float32))).outputs[0] == [200_000]


def test_without_the_cap_a_software_device_loses_iterations(engine, monkeypatch):
    if backend.info()["loop_cap"] == "none":
        pytest.skip("this device runs every iteration")
    monkeypatch.setattr(reduce, "PIECE", 300_000)
    assert on_gpu(engine, *primitive("Reduce", "sum", np.ones((1, 200_000), np.float32))).outputs[0] != [200_000]


def test_a_product_over_70_000_terms_is_right(engine):
    ones = np.ones((1, 70_000), np.float32)
    assert on_gpu(engine, *primitive("Gemm", "", ones, ones.T.copy())).outputs[0] == [[70_000]]
    a, b = draw("uint8", (2, 140_000)), draw("int8", (140_000, 3))
    assert same_bits(*gpu_and_cpu(engine, "Gemm", "", a, b, draw("uint8", ()), draw("int8", ())))


def ties(zero_point: str, count: int = 400) -> tuple[Array, Array, Array]:
    """x just below, at and above (n + 1/2) * scale, with scales that divide nothing."""
    scale = np.array([0.1, 0.0073, 3.7], np.float32)
    at = (np.arange(count) - count / 2 + 0.5).astype(np.float32) * scale[:, None]
    x = np.concatenate([np.nextafter(at, np.float32(-np.inf)), at, np.nextafter(at, np.float32(np.inf))], -1)
    return x[None], scale, draw(zero_point, (3,))


@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16"])
def test_quantize_rounds_the_correctly_rounded_quotient_half_to_even(engine, to):
    assert same_bits(*gpu_and_cpu(engine, "Quantize", "", *ties(to), to=to, precision=""))


@pytest.mark.parametrize(
    "mutate",
    [
        ("round(bitcast<f32>(clamped))", "floor(bitcast<f32>(clamped) + 0.5)"),
        ("round(bitcast<f32>(clamped))", "trunc(bitcast<f32>(clamped))"),
        ("| u32(rest != 0u), e - 31", ", e - 31"),
        (", -128, 127);", ", -127, 127);"),
    ],
)
def test_any_other_rounding_of_quantize_is_seen(engine, mutate):
    graph, feeds = primitive("Quantize", "", *ties("int8"), to="int8", precision="")
    (expected,) = execute(plan(graph, CPU, "cpu"), feeds)
    (wrong,) = on_gpu(engine, graph, feeds, mutate=mutate).outputs
    assert not same_bits(wrong, expected)


def test_requantize_and_dequantize_are_the_cpus_bit_for_bit(engine):
    rng = np.random.default_rng(3)
    acc = (rng.integers(-(2**31), 2**31, (2, 3, 500)) >> rng.integers(0, 31, (2, 3, 500))).astype(np.int32)
    multiplier = np.array([2.0**-8, 0.00123, 3.3e-7], np.float32)
    assert same_bits(
        *gpu_and_cpu(engine, "Requantize", "", acc, multiplier, draw("uint8", (3,)), to="uint8", zp_inside=False)
    )
    assert same_bits(*gpu_and_cpu(engine, "Dequantize", "", acc, multiplier, draw("int32", (3,)), to="float32"))


def test_division_of_any_float32_bits_is_correctly_rounded(engine):
    x, y = (draw("uint32", (4096,), seed).view(np.float32) for seed in (1, 2))
    y[:8] = x[8:16] = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-39, 3e38], np.float32)
    x[:8] = y[8:16] = np.array([0, 0, np.inf, 1, 1, 1e-45, 3e38, 1e-45], np.float32)
    actual, expected = gpu_and_cpu(engine, "Elementwise", "div", x, y)
    assert np.array_equal(actual, expected, equal_nan=True)


@pytest.mark.parametrize("fn", ["max", "min", "relu"])
def test_nan_wins_by_its_bits(engine, fn):
    values = np.array(
        [0x7FC00000, 0xFFC00001, 0x7F800001, 0x7F800000, 0xFF800000, 0, 0x80000000, 0x3F800000], np.uint32
    )
    x, y = (part.ravel().view(np.float32) for part in np.meshgrid(values, values))
    arrays = (np.ascontiguousarray(x),) if fn == "relu" else (np.ascontiguousarray(x), np.ascontiguousarray(y))
    actual, expected = gpu_and_cpu(engine, "Elementwise", fn, *arrays)
    assert np.array_equal(actual, expected, equal_nan=True)
    if fn != "relu":
        graph, feeds = primitive("Elementwise", fn, *arrays)
        (wrong,) = on_gpu(engine, graph, feeds, mutate=("if (is_nan(b)) { return b; }", "")).outputs
        assert not np.array_equal(wrong, expected, equal_nan=True)


@pytest.mark.parametrize("fn", [*pointwise.FUNCTIONS, *pointwise.ANGLES, "sqrt"])
def test_functions_stay_within_their_limits_on_any_bits(engine, fn):
    special = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.7228, 88.73, -87.4, -103.9, -104.1], np.float32
    )
    near = np.linspace(-6, 6, 3001, dtype=np.float32)
    bits = draw("uint32", (4096,)).view(np.float32)
    bits = bits[~np.isnan(bits)]  # the reference would warn about signalling ones
    graph, feeds = primitive("Elementwise", fn, np.concatenate([special, near, bits]))
    result = on_gpu(engine, graph, feeds)
    policy = Policy(ftz=True)
    verdict = judge(evaluate(graph, feeds, policy), Observation(Status.PASS, result.outputs), policy)
    assert verdict.status is Status.PASS, verdict.message


def test_powers_stay_within_their_limits(engine):
    values = np.float32([0, -0.0, 1, -1, 2, -2, 0.5, -3, 7, 1e-3, 1e30, np.inf, -np.inf, np.nan, 16777217, 0.1, -2.5])
    x, y = (np.ascontiguousarray(part.ravel()) for part in np.meshgrid(values, values))
    graph, feeds = primitive("Elementwise", "pow", x, y)
    policy = Policy(ftz=True)
    result = on_gpu(engine, graph, feeds)
    verdict = judge(evaluate(graph, feeds, policy), Observation(Status.PASS, result.outputs), policy)
    assert verdict.status is Status.PASS, verdict.message
    a, b = draw("int64", (300,)), np.arange(300) % 40
    assert same_bits(*gpu_and_cpu(engine, "Elementwise", "pow", a, b))


CASTS = [
    ("int64", "float32"),
    ("float64", "float16"),
    ("float32", "int8"),
    ("float32", "bfloat16"),
    ("uint64", "float64"),
]


@pytest.mark.parametrize(("source", "to"), CASTS)
def test_casts_round_once_and_saturate(engine, source, to):
    bits = {"float64": "uint64", "float32": "uint32"}.get(source, source)
    x = draw(bits, (2048,)).view(dt.numpy_dtype(source))
    if dt.is_float(source):
        x = np.concatenate([x[~np.isnan(x)], np.array([np.nan, np.inf, -np.inf, 127.9, -128.9], x.dtype)])
        x[:512] = np.linspace(-70000, 70000, 512)
    actual, expected = gpu_and_cpu(engine, "Elementwise", "cast", x, to=to)
    assert np.array_equal(actual.astype(np.float64), expected.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("fn", ["mul", "div", "max", "neg"])
def test_int64_arithmetic_is_the_cpus_bit_for_bit(engine, fn):
    x, y = draw("int64", (512,)), draw("int64", (512,), 1) >> np.arange(512) % 60
    y[y == 0] = 7
    assert same_bits(*gpu_and_cpu(engine, "Elementwise", fn, *((x,) if fn == "neg" else (x, y))))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32"])
def test_comparisons_remainders_and_bits_are_the_cpus_bit_for_bit(engine, dtype):
    x, y = draw(dtype, (257,)), draw(dtype, (257,), 1)
    y[:40] = x[:40]
    y[y == 0] = 3
    fns = ["equal", "less", "less_or_equal", "fmod"]
    for fn in fns if dt.is_float(dtype) else [*fns, "mod", "and", "or", "xor"]:
        assert same_bits(*gpu_and_cpu(engine, "Elementwise", fn, x, y)), fn
    for fn in ("floor", "round", "sign") if dt.is_float(dtype) else ("not", "sign"):
        z = (x / 4).astype(x.dtype)
        assert same_bits(*gpu_and_cpu(engine, "Elementwise", fn, z)), fn


def test_rows_longer_than_a_piece_are_scanned_sorted_and_searched(engine):
    x = draw("int32", (2, 2500)) % 100
    for fn in ("sum", "prod"):
        assert same_bits(*gpu_and_cpu(engine, "Scan", fn, x))
    for largest in (0, 1):
        assert same_bits(*gpu_and_cpu(engine, "Sort", "order", x, largest=largest))
        assert same_bits(*gpu_and_cpu(engine, "Sort", "values", x.astype(np.int8), largest=largest))
        assert same_bits(*gpu_and_cpu(engine, "Reduce", "argmax", x, last=largest))
        assert same_bits(*gpu_and_cpu(engine, "Reduce", "argmin", x, last=largest))


def test_scatter_applies_updates_in_order(engine):
    x, updates = draw("int8", (2, 3, 4, 5)), draw("int8", (2, 6, 5), 1)
    indices = np.stack([draw("uint8", (2, 6)) % 3, draw("uint8", (2, 6), 1) % 4], -1).astype(np.int64) - [3, 0]
    for fn in ("none", "add", "mul", "max"):
        assert same_bits(*gpu_and_cpu(engine, "Scatter", fn, x, indices, updates)), fn
    assert same_bits(*gpu_and_cpu(engine, "Gather", "nd", x, indices))
    many = draw("uint8", (1, 20_000, 1)).astype(np.int64) % 9
    values = draw("float32", (1, 20_000, 1))
    assert same_bits(*gpu_and_cpu(engine, "Scatter", "add", np.zeros((1, 9, 1), np.float32), many, values))
    graph, feeds = primitive("Scatter", "none", x, indices + 9, updates)
    with pytest.raises(IndexError, match=r"Scatter: index \d+ is out of range for an axis of [34]"):
        on_gpu(engine, graph, feeds)


def test_types_of_less_than_a_byte_are_quantized(engine):
    x, scale = draw("float32", (2, 3, 9)), np.array([0.5, 0.3, 1], np.float32)
    for to in dt.SUBBYTE:
        zero_point = np.zeros(3, dt.numpy_dtype(to))
        actual, expected = gpu_and_cpu(engine, "Quantize", "", x, scale, zero_point, to=to, precision="")
        assert (actual == expected).all()
        assert same_bits(*gpu_and_cpu(engine, "Dequantize", "", actual, scale, zero_point, to="float32"))


def test_ten_primitives_take_one_submit_and_one_readback(engine):
    inputs = {"x": draw("float32", (4, 8))}
    ops = ["Relu x a", "Neg a b", "Abs b c", "Add c k d", "Mul d k e", "MatMul e w f", "Transpose f g", "Max g k2 h"]
    ops += ["Sqrt h i", "Tanh i y"]
    nodes = [node(words[0], " ".join(words[1:-1]), words[-1]) for words in map(str.split, ops)]
    constants = {"k": np.float32(3), "w": draw("float32", (8, 3), 1), "k2": np.float32(1)}
    data = model(*nodes, inputs=inputs, **constants)
    first, second = engine(data, inputs), engine(data, inputs)
    assert second.counts["dispatch_count"] >= 10
    assert (second.counts["submit_count"], second.counts["readback_count"]) == (1, 1)
    assert (first.counts["plan_hit_count"], second.counts["plan_hit_count"]) == (0, 1)
    assert first.counts["pipeline_creations"] > second.counts["pipeline_creations"] == 0
    # Constants went up once: the second run uploads its input only.
    assert first.counts["upload_bytes"] > second.counts["upload_bytes"] == inputs["x"].nbytes
    (expected,) = cpu.load()(data, inputs).outputs
    assert np.allclose(second.outputs[0], expected, rtol=1e-6)


def test_what_depends_on_constants_alone_runs_once(engine):
    inputs, w = {"x": draw("float32", (4, 8))}, draw("float32", (8, 3), 1)
    data = model(node("MatMul", "x w"), inputs=inputs, w=w)
    both = model(node("MatMul", "x w"), inputs={**inputs, "w": w})
    held, given = engine(data, inputs), engine(both, {**inputs, "w": w})
    # The weights are packed when the plan is made.
    assert (held.counts["dispatch_count"], held.counts["prepare_submit_count"]) == (2, 1)
    assert (given.counts["dispatch_count"], given.counts["prepare_submit_count"]) == (3, 0)
    assert same_bits(held.outputs[0], given.outputs[0])
    assert same_bits(held.outputs[0], inputs["x"] @ w)
    # A buffer that is filled by parts must not be taken for a constant because its first part is one.
    graph, feeds = primitive("DataMove", "concat", np.float32([1, 2]), np.float32([3]), axis=0)
    half = replace(graph, inputs=("x1",), constants={"x0": feeds["x0"]})
    assert not bind(half, FIND, engine.device.limit).once
    assert same_bits(on_gpu(engine, half, {"x1": np.float32([5])}).outputs[0], np.float32([1, 2, 5]))


def test_a_lost_device_is_a_typed_error_and_the_next_case_runs(engine, monkeypatch):
    inputs = {"x": draw("float32", (4, 8))}
    data = model(node("Relu", "x"), inputs=inputs)
    engine(data, inputs)
    engine.device.gpu.destroy()
    with pytest.raises(dispatch.DeviceLostError, match="lost"):
        engine(data, inputs)
    assert same_bits(engine(data, inputs).outputs[0], np.maximum(inputs["x"], 0))

    read_back = dispatch.read_back

    def lost_meanwhile(*arguments):
        engine.device.gpu.destroy()
        return read_back(*arguments)

    monkeypatch.setattr(dispatch, "read_back", lost_meanwhile)
    with pytest.raises(dispatch.DeviceLostError):
        engine(data, inputs)
    monkeypatch.undo()
    assert same_bits(engine(data, inputs).outputs[0], np.maximum(inputs["x"], 0))


def test_a_tensor_larger_than_a_binding_is_refused_by_name():
    graph, _ = primitive("DataMove", "expand", np.ones((1, 4), np.float32), shape=(1000, 4))
    with pytest.raises(UnsupportedError, match=r"float32\[1000x4\] needs 16000 bytes"):
        bind(graph, FIND, 15_999)
    bind(graph, FIND, 16_000)


def test_an_adapter_is_chosen_by_index_or_word_and_never_replaced(engine):
    best = dispatch.describe(dispatch.choose())
    assert all(dispatch.describe(dispatch.choose(word)) == best for word in ("0", best[:6].upper()))
    with pytest.raises(BackendUnavailableError, match="apt-get install"):
        backend.load(adapter="no such adapter")


def test_no_adapter_is_unavailable_with_what_to_install(monkeypatch):
    monkeypatch.setattr(dispatch.wgpu.gpu, "enumerate_adapters_sync", list)
    with pytest.raises(BackendUnavailableError, match=r"apt-get install .*mesa-vulkan-drivers"):
        backend.load()


def test_a_primitive_without_a_kernel_is_refused_or_counted(engine):
    inputs = {"x": draw("float64", (3, 2))}
    data = model(node("Neg", "x", "a"), node("Add", "a a", "b"), node("Abs", "b"), inputs=inputs)
    with pytest.raises(UnsupportedError, match=r"Elementwise\.add with float64"):
        engine(data, inputs)
    result = backend.load(fallback="count")(data, inputs)
    assert same_bits(result.outputs[0], np.abs(-2 * inputs["x"]))
    assert (result.counts["fallback_count"], result.counts["submit_count"], result.counts["readback_count"]) == (
        1,
        2,
        2,
    )


def test_an_index_out_of_range_is_named_wherever_it_comes_from(engine):
    x, indices = draw("int8", (4, 2)), np.array([1, 5, -4])
    error = "index 5 is out of range for an axis of 4"
    given, feeds = primitive("Gather", "", x[None], indices)
    constant = replace(given, inputs=("x0",), constants={"x1": indices})
    for graph in (given, constant):
        with pytest.raises(IndexError, match=error):
            on_gpu(engine, graph, feeds)
    computed = model(node("Neg", "i", "n"), node("Gather", "x n"), inputs={"x": x, "i": indices})
    with pytest.raises(IndexError, match=error):
        engine(computed, {"x": x, "i": -indices})
    fine = np.array([1, 3, -4])
    assert same_bits(engine(computed, {"x": x, "i": -fine}).outputs[0], x[fine])


def test_only_float64_arithmetic_8_bit_floats_and_signed_shifts_are_missing_against_the_cpu():
    have = {(k.primitive, k.fn) for k in backend.kernels()}
    lacking = {(k.primitive, k.fn) for k in cpu.kernels()} - have
    assert lacking == {("Quantize", "float8")}
    rows = [k for k in cpu.kernels() if (k.primitive, k.fn) in have and k.dtypes != ("*",)]
    refused = [k for k in rows if FIND(k.primitive, k.fn, k.dtypes) is None and not k.fn.startswith("shift_")]
    assert all("float64" in k.dtypes or any("float8" in d for d in k.dtypes) for k in refused)


def test_info_names_the_adapter_and_what_was_measured(engine):
    facts = backend.info()
    assert facts["device"] in backend._dispatch().describe(engine.adapter)
    assert facts["round"] == facts["int_to_float"] == "half to even"
    assert float(facts["division_error"].split()[0]) <= 2.5
    assert {"loop_cap", "contraction", "subnormals", "features", "float_sum_order"} <= set(facts)
