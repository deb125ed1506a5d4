"""The fuzzer of the front door: bytes and structures that a stranger changed are values or typed errors, in time.

Bounded and seeded; tests/soak/fuzz.py knocks at the same doors for long.
"""

from __future__ import annotations

import copy
import io
import json
import random
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from opgauge import config, counts_gate, expectations, isolation, model, resume, store, wire
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.evaluate import evaluate
from opgauge.reference_engine.lower import lower

FEEDS = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
IMAGE = {"x": np.arange(32, dtype=np.uint8).reshape(1, 2, 4, 4)}
TYPED = (OpgaugeError, wire.WireError, config.ConfigError)
LIMIT_S = 2.0
Mutator = Callable[[bytes, random.Random], bytes]


# ---- mutants


def bytes_changed(data: bytes, random_: random.Random) -> bytes:
    """A few bytes replaced, removed, doubled or cut off."""
    changed = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 4, 16))):
        at = random_.randrange(len(changed) + 1) if changed else 0
        kind = random_.randrange(5)
        if kind == 0:
            changed[at : at + 1] = random_.randbytes(1)
        elif kind == 1:
            del changed[at : at + random_.choice((1, 2, 8))]
        elif kind == 2:
            changed[at:at] = changed[at : at + random_.choice((1, 4, 16))]
        elif kind == 3:
            changed[at : at + 4] = random_.choice((b"\xff\xff\xff\x7f", b"\x00" * 4, b"NaN,", b'"":{', b"../a"))
        else:
            del changed[len(changed) - random_.randrange(8) :]
    return bytes(changed)


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, -(2**63), 2**70, 0.5, 1e308, "", "x", "\x1b[31m", "../../etc/passwd",
    "é" * 300, "9" * 400, [], {}, [[]], [None], [1, "a"], {"": {}}, {"kind": "record"},
)  # fmt: skip


def structure_changed(value: Any, random_: random.Random, odd: tuple[Any, ...] = ODD) -> Any:
    """A tree of dicts and lists with a node replaced, removed, renamed, doubled or moved elsewhere."""
    value = copy.deepcopy(value)
    for _ in range(random_.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return random_.choice(odd)
        parent, key = random_.choice(places)
        kind = random_.randrange(5)
        if kind == 0:
            parent[key] = copy.deepcopy(random_.choice(odd))
        elif kind == 1:
            del parent[key]
        elif kind == 2:
            other, where = random_.choice(places)
            parent[key] = copy.deepcopy(other[where])
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        else:
            parent[random_.choice((f"{key} ", str(key).upper(), "", "kind", "id"))] = parent[key]
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield value, key
        yield from _places(below)


def json_changed(data: bytes, random_: random.Random) -> bytes:
    return json.dumps(structure_changed(json.loads(data), random_)).encode()


def journal_changed(data: bytes, random_: random.Random) -> bytes:
    """Entries of a journal changed, with a CRC32 that fits: only the entry itself is wrong."""
    entries = [json.loads(line)["entry"] for line in data.splitlines()]
    changed = structure_changed(entries, random_)
    changed = changed if isinstance(changed, list) else [changed]
    return b"".join(store.line_of(entry) for entry in changed)


def toml_changed(data: bytes, random_: random.Random) -> bytes:
    odd = tuple(v for v in ODD if v not in (None, [None], 2**70))
    changed = structure_changed(tomllib.loads(data.decode()), random_, odd)
    if not isinstance(changed, dict):
        return str(changed).encode()
    return "".join(f"{json.dumps(str(k))} = {_toml(v)}\n" for k, v in changed.items()).encode()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else json.dumps(value)


NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 40)
REALS = (0.0, -0.0, 1.0, float("nan"), float("inf"), -1.0, 1e-45, 3e38)
TEXTS = ("", "x", "y", "Relu", "Loop", "Cast", "..", "/etc/passwd", "\x1b[2J", "a" * 5000, "com.microsoft", "axis")


def model_changed(data: bytes, random_: random.Random) -> bytes:
    """Fields of a model removed, doubled, exchanged or set to odd values; still a protobuf message."""
    made = onnx.load_model_from_string(data)
    for _ in range(random_.choice((1, 1, 2, 3, 5))):
        _message_changed(made, random_)
    return made.SerializeToString()


def _message_changed(made: onnx.ModelProto, random_: random.Random) -> None:
    messages = list(_messages(made))
    message = random_.choice(messages)
    field = random_.choice(message.DESCRIPTOR.fields)
    many = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    content = getattr(message, field.name)
    if field.message_type is not None:
        same = [m for m in messages if m.DESCRIPTOR is field.message_type]
        kind = random_.randrange(3)
        if kind == 0 or not same:
            message.ClearField(field.name)
        elif many and kind == 1 and len(content):
            del content[random_.randrange(len(content))]
        else:
            # By way of bytes: a message copied into its own child crashes protobuf.
            source = random_.choice(same).SerializeToString()
            (content.add() if many else content).ParseFromString(source)
        return
    value: Any
    if field.cpp_type == field.CPPTYPE_STRING:
        value = random_.choice(TEXTS)
        value = value.encode() if field.type == field.TYPE_BYTES else value
    elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        value = random_.choice(REALS)
    else:
        value = random_.choice(NUMBERS)
    try:
        if not many:
            setattr(message, field.name, value)
        elif len(content) and random_.randrange(3) == 0:
            del content[random_.randrange(len(content))]
        elif len(content) and random_.randrange(2):
            content[random_.randrange(len(content))] = value
        else:
            content.append(value)
    except (ValueError, TypeError):  # beyond the field's own range
        message.ClearField(field.name)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, content in message.ListFields():
        if field.message_type is None:
            continue
        for below in [content] if hasattr(content, "ListFields") else list(content):
            yield from _messages(below)


# ---- doors


class Door(NamedTuple):
    """What reads, something that it reads well, and how that is changed."""

    opened: Callable[[bytes, Path], object]
    good: bytes
    mutators: tuple[Mutator, ...]


def _model(feeds: dict[str, np.ndarray], nodes: list[onnx.NodeProto], stored: dict[str, Any], opset: int) -> bytes:
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", T.UNDEFINED, None)], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString()


def _reads_model(feeds: dict[str, np.ndarray]) -> Callable[[bytes, Path], object]:
    return lambda data, _: evaluate(lower(data, feeds), feeds)


def _reads_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def opened(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return opened


F = np.float32
RELU = _model(FEEDS, [helper.make_node("Relu", ["x"], ["y"])], {}, 17)
QUANTIZE = _model(
    FEEDS, [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])], {"s": F(0.5), "z": np.uint8(3)}, 13
)
CONV = _model(
    IMAGE,
    [helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "v", "s", "z", "b"], ["y"], pads=[1, 1, 0, 0])],
    {"s": F(0.5), "z": np.uint8(3), "v": np.int8(0), "w": np.ones((3, 2, 2, 2), np.int8), "b": np.int32([1, 2, 3])},
    13,
)  # fmt: skip
REGION = _model(
    FEEDS,
    [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("Concat", ["p", "t"], ["y"], axis=0),
    ],
    {"s": F(0.5), "z": np.uint8(3), "shape": np.int64([3, -1])},
    13,
)
RECORD = (
    b'{"kind":"record","case":"Relu/int8/op14/s1","suite":"operators","op":"Relu","label":"int8","profile":"plain",'
    b'"backend":"cpu","status":"pass","elements":3,"detail":{"times_ns":{"run":1}},"counts":{"nodes":2}}'
)
RUN = {
    "kind": "run",
    "settings": {"backends": ["cpu"], "budget": 3, "seed": 0},
    "work": [["row", "Relu/int8"], ["witness"]],
    "shard": "",
}
JOURNAL = b"".join(
    store.line_of(entry)
    for entry in (
        RUN,
        {"kind": "started", "case": "Relu/int8/op14/s1"},
        json.loads(RECORD),
        {"kind": "done", "task": ["row", "Relu/int8"]},
        {"kind": "end", "exit_code": 0, "errors": [], "backends": {}, "meta": {}},
    )
)
FINISHED = JOURNAL + store.line_of({"kind": "done", "task": ["witness"]})
DEVIATION = b"""[[deviation]]
id = "a"
operators = ["Relu"]
runtime = "onnxruntime"
versions = ">=1.17"
predicate = "v >= 1"
witness = "Relu/int8"
reason = "r"
link = "l"
"""
SETTINGS = b"""[tool.opgauge]
budget = 7
timeout = 3.5
backend = ["cpu"]
"""
CASE = (
    b"QLinearMatMul/uint8,int8/op13/a=uint8:2x3:near@188@12/b!=int8:3x2:1,2,3,4,5,6/@axis=i:1/y=uint8/ties/s849702057"
)
FRAME = json.dumps({"status": "pass", "counts": {}, "times_ns": {"run": 5}, "tensors": [["uint8", [2, 32]]]}).encode()


def _reads_record(data: bytes, _: Path) -> object:
    entry = store.strict_json(data, "fuzz")
    if not isinstance(entry, dict):
        raise store.BaselineError("fuzz: no object")
    return store.record_from_dict({k: v for k, v in entry.items() if k != "kind"})


def _reads_frame(data: bytes, _: Path) -> object:
    header = wire.decode_header(data)
    wire.shared_length(header, 64)
    return wire.tensors_of(header, bytes(64))


def _archive() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=FEEDS["x"])
    return stream.getvalue()


SAVED = json.dumps(
    {"format": 1, "id": "Relu/int8/op14/s1", "label": "l", "inputs": {"x": "float32"}, "extra": {}}
).encode()


def _reads_saved(data: bytes, folder: Path) -> object:
    (folder / "a.onnx").write_bytes(RELU)
    (folder / "a.npz").write_bytes(_archive())
    (folder / "a.json").write_bytes(data)
    return model.load_saved(folder / "a.json")


def _reads_arrays(data: bytes, folder: Path) -> object:
    (folder / "b.onnx").write_bytes(RELU)
    (folder / "b.json").write_bytes(SAVED)
    (folder / "b.npz").write_bytes(data)
    return model.load_saved(folder / "b.json", 1 << 20)


def _reads_deviations(data: bytes, _: Path) -> object:
    return expectations.parse(data.decode("utf-8", "replace"), "fuzz")


ENTRY = {"counts": {"nodes": 3, "peak_bytes": 64}, "nodes": {"DataMove.copy from x": 1}, "rules": {}}
COUNTS = json.dumps({"format": 1, "counts": {"cpu": {"net": ENTRY}}, "accepted": [{"reason": "first"}]}).encode()


def _compares_counts(path: Path) -> object:
    return counts_gate.compare(counts_gate.read(path)["counts"], {"cpu": {"net": ENTRY}})


MODEL, TREE = (bytes_changed, model_changed, model_changed), (bytes_changed, json_changed)
DOORS: dict[str, Door] = {
    "model": Door(_reads_model(FEEDS), RELU, MODEL),
    "quantizing model": Door(_reads_model(FEEDS), QUANTIZE, MODEL),
    "convolution": Door(_reads_model(IMAGE), CONV, MODEL),
    "model of several nodes": Door(_reads_model(FEEDS), REGION, MODEL),
    "record": Door(_reads_record, RECORD, TREE),
    "journal": Door(_reads_file("journal.jsonl", store.read), JOURNAL, (bytes_changed, journal_changed)),
    "journal to go on with": Door(_reads_file("open.jsonl", resume.load), JOURNAL, (bytes_changed, journal_changed)),
    "journals to merge": Door(_reads_file("part.jsonl", lambda p: resume.merge([p, p])), FINISHED, (journal_changed,)),
    "expectations": Door(_reads_deviations, DEVIATION, (bytes_changed, toml_changed)),
    "counts baseline": Door(_reads_file("counts.json", _compares_counts), COUNTS, TREE),
    "settings": Door(_reads_file("pyproject.toml", config.from_project), SETTINGS, (bytes_changed, toml_changed)),
    "case id": Door(lambda data, _: parse_id(data.decode("utf-8", "replace")), CASE, (bytes_changed,)),
    "saved case": Door(_reads_saved, SAVED, TREE),
    "saved arrays": Door(_reads_arrays, _archive(), (bytes_changed,)),
    "frame of a worker": Door(_reads_frame, FRAME, TREE),
}  # fmt: skip


class Knock(NamedTuple):
    """What got past a door as anything but a value or a typed error, and the slowest answer."""

    wrong: list[tuple[bytes, str]]
    accepted: int
    slowest_s: float


def knock(name: str, count: int, seed: int, folder: Path) -> Knock:
    door = DOORS[name]
    wrong: list[tuple[bytes, str]] = []
    accepted, slowest = 0, 0.0
    random_ = random.Random(f"{name}{seed}")
    for i in range(count):
        data = door.mutators[i % len(door.mutators)](door.good, random_)
        start = time.monotonic()
        try:
            door.opened(data, folder)
            accepted += 1
        except TYPED:
            pass
        except Exception as error:
            wrong.append((data, f"{type(error).__name__}: {error}"))
        slowest = max(slowest, time.monotonic() - start)
    return Knock(wrong, accepted, slowest)


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """What the reference worker may use at most, so that a bomb is an error here too."""
    isolation.limit_memory(6 << 30)
    yield
    isolation.limit_memory(0)


@pytest.mark.parametrize("name", DOORS)
def test_what_is_good_is_taken(name: str, tmp_path: Path) -> None:
    DOORS[name].opened(DOORS[name].good, tmp_path)


@pytest.mark.parametrize("name", DOORS)
def test_mutants_are_values_or_typed_errors(name: str, tmp_path: Path) -> None:
    assert not knock(name, 45, 0, tmp_path).wrong[:3]


def test_a_door_that_lets_other_errors_through_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(data: bytes, _: Path) -> object:
        return json.loads(data)["case"]

    monkeypatch.setitem(DOORS, "careless", Door(careless, RECORD, TREE))
    assert len(knock("careless", 50, 0, tmp_path).wrong) > 10
