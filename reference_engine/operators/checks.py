"""What lowerings check before they emit: element types, and attributes against the opset."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import GenericAlias
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..emit import Emitter, Value, cast
from ..errors import DtypeError, ModelError, UnknownOperatorError

Versions = tuple[int, int | None]


def text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def same_dtype(emit: Emitter, **values: Value) -> None:
    """Raises: DtypeError naming the inputs that differ."""
    if len({v.dtype for v in values.values()}) > 1:
        found = ", ".join(f"{name} {v.spec}" for name, v in values.items())
        raise DtypeError(f"{emit.source}: inputs must have one element type, got {found}")


def one_of(emit: Emitter, name: str, value: Value | None, words: tuple[str, ...]) -> None:
    """Raises: DtypeError naming the input and what it may be."""
    if value is None:
        raise DtypeError(f"{emit.source}: {name} is absent, expected {' or '.join(words)}")
    if value.dtype not in words:
        raise DtypeError(f"{emit.source}: {name} is {value.spec}, expected {' or '.join(words)}")


def dtype_of(emit: Emitter, name: str, elem_type: int) -> str:
    """The word of an attribute that holds a TensorProto element type. Raises: DtypeError."""
    try:
        return dt.word_of_onnx(elem_type)
    except DtypeError as error:
        raise DtypeError(f"{emit.source}: {name}: {error}") from None


def integers(emit: Emitter, value: Value, name: str) -> tuple[int, ...]:
    """The content of an input that decides a shape (axes, starts, pads...)."""
    one_of(emit, name, value, ("int64", "int32"))
    if value.rank > 1:
        raise ModelError(f"{emit.source}: {name} has shape {text(value.shape)}, expected a list")
    return tuple(int(i) for i in emit.data(value, name).ravel())


def widen(emit: Emitter, x: Value) -> Value:
    """16-bit floats are summed in float32 and rounded once, at the end."""
    return cast(emit, x, "float32") if x.dtype in ("float16", "bfloat16") else x


def versioned(lower: Callable[..., Any], **versions: Versions) -> Callable[..., Any]:
    """`lower`, refusing attributes outside the opsets (first, last) in which ONNX knows them.

    Raises: UnknownOperatorError naming the attribute and its opsets.
    """

    @functools.wraps(lower)
    def checked(emit: Emitter, *inputs: Value | None, **attributes: Any) -> Any:
        for name in attributes.keys() & versions.keys():
            first, last = versions[name]
            if emit.opset < first or (last is not None and emit.opset > last):
                until = "" if last is None else f" to {last}"
                raise UnknownOperatorError(
                    f"{emit.source}: attribute {name} belongs to opsets {first}{until or ' and later'}, "
                    f"this model has opset {emit.opset}"
                )
        return lower(emit, *inputs, **attributes)

    checked.__dict__["versions"] = versions
    return checked


_KINDS = {"int": int, "float": float, "str": str, "Ints": tuple, "tuple": tuple, "Array": np.ndarray}


def _kind(annotation: Any) -> str:
    """The word of an annotation, whether or not its module postpones their evaluation."""
    word = annotation.__name__ if isinstance(annotation, type | GenericAlias) else str(annotation)
    return word.removesuffix(" | None")


def complete(lower: Callable[..., Any]) -> Callable[..., Any]:
    """`lower`, refusing a model that leaves out what is required or gives an attribute of another type.

    Required is what has no default and, for inputs, is not annotated as possibly None.
    Raises: ModelError naming the input or attribute.
    """
    parameters = list(inspect.signature(lower).parameters.values())[1:]
    inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = {p.name for p in inputs if p.default is p.empty and "None" not in str(p.annotation)}
    attributes = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    kinds = {name: _kind(p.annotation) for name, p in attributes.items()}

    @functools.wraps(lower)
    def checked(emit: Emitter, *given: Value | None, **attrs: Any) -> Any:
        for parameter, value in zip(inputs, given, strict=False):
            if value is None and parameter.name in needed:
                raise ModelError(f"{emit.source}: required input {parameter.name} is absent")
        for name, parameter in attributes.items():
            if parameter.default is parameter.empty and name not in attrs:
                raise ModelError(f"{emit.source}: required attribute {name} is missing")
        for name, value in attrs.items():
            whole = not isinstance(value, tuple) or all(isinstance(v, int) for v in value)
            if kinds[name] in _KINDS and not (isinstance(value, _KINDS[kinds[name]]) and whole):
                raise ModelError(f"{emit.source}: attribute {name} is {value!r}, expected {kinds[name].lower()}")
        return lower(emit, *given, **attrs)

    return checked
