"""A case as the unit that every runtime understands: one ONNX node, its initializers and its inputs."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.case import id_of
from opgauge.reference_engine.errors import CaseError
from opgauge.reference_engine.types import Arg, Array, Attr, Case
from opgauge.suites import chains, regions
from opgauge.suites.profiles import tensor

# (first opset of ai.onnx, lowest IR version that may carry it)
IR_VERSIONS = ((26, 13), (25, 12), (23, 11), (21, 10), (19, 9), (15, 8), (0, 7))
SAVED_LIMIT = 1 << 30
TEMPLATES = {**regions.TEMPLATES, **chains.TEMPLATES}
FORMAT = 1


def ir_version(opset: int) -> int:
    return next(ir for first, ir in IR_VERSIONS if opset >= first)


def output_names(case: Case) -> tuple[str, ...]:
    return tuple(f"y{i}" for i in range(len(case.outputs)))


def set_attribute(proto: onnx.AttributeProto, name: str, value: Attr | Arg) -> None:
    """The attribute kinds that a case can spell; an empty tuple is a list of integers."""
    proto.name = name
    if isinstance(value, Arg):
        proto.type = onnx.AttributeProto.TENSOR
        set_tensor(proto.t, value.name, value.dtype, tensor(value, 0, 0))
    elif not isinstance(value, tuple):
        if isinstance(value, str):
            proto.s, proto.type = value.encode(), onnx.AttributeProto.STRING
        elif isinstance(value, float):
            proto.f, proto.type = value, onnx.AttributeProto.FLOAT
        else:
            proto.i, proto.type = value, onnx.AttributeProto.INT
    elif value and isinstance(value[0], str):
        proto.strings.extend(str(v).encode() for v in value)
        proto.type = onnx.AttributeProto.STRINGS
    elif value and isinstance(value[0], float):
        proto.floats.extend(float(v) for v in value)
        proto.type = onnx.AttributeProto.FLOATS
    else:
        proto.ints.extend(int(v) for v in value)
        proto.type = onnx.AttributeProto.INTS


def set_tensor(proto: onnx.TensorProto, name: str, dtype: str, array: Array) -> None:
    """Raw little-endian bytes, as ONNX stores them on every machine."""
    proto.name = name
    proto.data_type = dt.ONNX[dtype]
    proto.dims.extend(array.shape)
    if dtype in dt.BITS:
        proto.raw_data = packed(array, dt.BITS[dtype])
        return
    proto.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def packed(array: Array, bits: int) -> bytes:
    """Elements narrower than a byte as ONNX stores them: several to a byte, the first in the low bits."""
    each = 8 // bits
    flat = np.zeros(math.ceil(array.size / each) * each, np.uint8)
    flat[: array.size] = array.astype(np.int8).ravel().view(np.uint8) & (2**bits - 1)
    return np.bitwise_or.reduce([flat[i::each] << (bits * i) for i in range(each)]).astype(np.uint8).tobytes()


def set_type(proto: onnx.ValueInfoProto, name: str, dtype: str, shape: tuple[int, ...] | None) -> None:
    """An output has no shape: it is the runtime's to find."""
    proto.name = name
    proto.type.tensor_type.elem_type = dt.ONNX[dtype]
    if shape is not None:
        dims = proto.type.tensor_type.shape
        dims.SetInParent()
        for size in shape:
            dims.dim.add().dim_value = size


def steps_of(case: Case) -> tuple[regions.Step, ...]:
    """The nodes of a case: one, or those of the region that it names. Raises: CaseError."""
    if case.domain != regions.DOMAIN:
        names = tuple("" if arg.absent else arg.name for arg in case.args)
        return (regions.Step(case.op, names, output_names(case), case.attrs),)
    if case.op not in TEMPLATES:
        raise CaseError(f"no region {case.op!r}: use one of {', '.join(TEMPLATES)}")
    try:
        return TEMPLATES[case.op](case)
    except (KeyError, IndexError, TypeError) as error:  # an id that somebody wrote
        raise CaseError(f"{case.op}: the region cannot be built: {error!r}: see `opgauge list --cases`") from error


def build(case: Case) -> tuple[bytes, dict[str, Array]]:
    """(ModelProto bytes, run-time inputs by name) of a case; arguments marked const are initializers.

    Raises: CaseError when a profile cannot fill an argument.
    """
    model = onnx.ModelProto()
    model.ir_version = ir_version(case.opset)
    model.producer_name = "opgauge"
    model.opset_import.add().version = case.opset
    if case.domain and case.domain != regions.DOMAIN:
        imported = model.opset_import.add()
        imported.domain, imported.version = case.domain, 1
    graph = model.graph
    graph.name = case.op
    for step in steps_of(case):
        node = graph.node.add()
        node.op_type, node.domain = step.op, "" if case.domain == regions.DOMAIN else case.domain
        node.input.extend(step.inputs)
        node.output.extend(step.outputs)
        for name, value in step.attrs:
            set_attribute(node.attribute.add(), name, value)
    inputs = {}
    for i, arg in enumerate(case.args):
        if arg.absent:
            continue
        array = tensor(arg, case.seed, i)
        if arg.const:
            set_tensor(graph.initializer.add(), arg.name, arg.dtype, array)
        else:
            set_type(graph.input.add(), arg.name, arg.dtype, arg.shape)
            inputs[arg.name] = array
    for name, dtype in zip(output_names(case), case.outputs, strict=True):
        set_type(graph.output.add(), name, dtype, None)
    return model.SerializeToString(), inputs


def save(case: Case, label: str, directory: Path, extra: Mapping[str, Any] | None = None) -> Path:
    """Write the case as .onnx, .npz and .json beside each other; the path of the .json.

    Raises: ValueError when `extra` holds NaN or infinities, which JSON has not.
    """
    model, inputs = build(case)
    text = id_of(case, label)
    stem = f"{case.op}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    meta = {
        "format": FORMAT,
        "id": text,
        "label": label,
        "inputs": {name: dt.word_of(array.dtype) for name, array in inputs.items()},
        "extra": dict(extra or {}),
    }
    document = json.dumps(meta, indent=1, sort_keys=True, allow_nan=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{stem}.onnx").write_bytes(model)
    # .npy has no bfloat16 and nothing narrower: their bits travel as unsigned integers, the .json says what they are.
    stored = {n: a.view(_bits(a.dtype)) for n, a in inputs.items()}
    np.savez(directory / f"{stem}.npz", **stored)  # type: ignore[arg-type]
    path = directory / f"{stem}.json"
    path.write_text(document, encoding="utf-8")
    return path


def load_saved(path: Path, limit: int = SAVED_LIMIT) -> tuple[bytes, dict[str, Array], dict[str, Any]]:
    """(model bytes, inputs, metadata) of a saved case; any of its three paths will do.

    Raises: CaseError naming the file and what is wrong: nothing in it is trusted.
    """
    path = Path(path)
    try:
        meta = json.loads(
            path.with_suffix(".json").read_text(encoding="utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
        )
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ValueError(f"not a saved case of format {FORMAT}")
        words = meta["inputs"]
        if not isinstance(words, dict) or not all(
            isinstance(w, str) for w in (*words.values(), meta["id"], meta["label"])
        ):
            raise ValueError("id, label and the types of inputs must be text")
        arrays = read_arrays(path.with_suffix(".npz"), {n: dt.numpy_dtype(w) for n, w in words.items()}, limit)
        model = path.with_suffix(".onnx")
        if model.stat().st_size > limit:
            raise ValueError(f"{model.name} has more than {limit} bytes")
        return model.read_bytes(), arrays, meta
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CaseError(f"{path}: {error}: save the case again") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"key {twice[0]!r} occurs twice")
    return dict(pairs)


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def read_arrays(path: Path, wanted: Mapping[str, np.dtype], limit: int) -> dict[str, Array]:
    """The arrays of an .npz: exactly the wanted names and types, never pickles, never more than `limit` bytes.

    Raises: ValueError, zipfile.BadZipFile.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = sorted(m.filename for m in members)
        if names != sorted(f"{name}.npy" for name in wanted):
            raise ValueError(
                f"{path.name} holds {', '.join(names) or 'nothing'}, expected {', '.join(wanted) or 'nothing'}"
            )
        total = sum(m.file_size for m in members)
        if total > limit:
            raise ValueError(f"{path.name} would unpack to {total} bytes, more than {limit}")
        for member in members:
            name = member.filename.removesuffix(".npy")
            # Cut off at the size that the directory claims: a lying entry cannot unpack further.
            with archive.open(member) as stream:
                data = stream.read(member.file_size)
            arrays[name] = _read_npy(data, wanted[name], f"{path.name}:{name}")
    return arrays


def _read_npy(data: bytes, dtype: np.dtype, where: str) -> Array:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{where}: .npy version {version} is not read")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, stored = read(stream)
    expected = _bits(dtype)
    if stored.newbyteorder("=") != expected:
        raise ValueError(f"{where}: holds {stored}, expected {expected}")
    if math.prod(shape) * stored.itemsize != len(data) - stream.tell():
        raise ValueError(f"{where}: shape {shape} does not fit {len(data)} bytes")
    array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array.view(dtype)


def _bits(dtype: np.dtype) -> np.dtype:
    """The dtype itself where .npy knows it, else unsigned integers of its size."""
    known = dtype.isbuiltin == 1
    return dtype if known else np.dtype(f"u{dtype.itemsize}")
