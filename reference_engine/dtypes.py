"""Element types in ONNX's own words, and their numpy counterparts."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .errors import DtypeError

NUMPY: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
ONNX: dict[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
}
NAME: dict[int, str] = {v: k for k, v in ONNX.items()}
WORD: dict[np.dtype, str] = {v: k for k, v in NUMPY.items()}
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

# Unit roundoff (half an ulp of 1), largest finite number, smallest subnormal, smallest normal.
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
MAX = {
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
    "float16": 65504.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
}
TINY = {"float32": 2.0**-149, "float64": 2.0**-1074, "float16": 2.0**-24, "bfloat16": 2.0**-133}
NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022, "float16": 2.0**-14, "bfloat16": 2.0**-126}


def narrow(value: np.ndarray, word: str) -> np.ndarray:
    """float64 -> a narrower float type in one rounding, half to even.

    ml_dtypes rounds to bfloat16 through float32, and so twice; a float32 rounded to odd first makes the second
    rounding the only one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if word != "bfloat16":
            return value.astype(NUMPY[word])
        single = value.astype(np.float32)
        bits = single.view(np.uint32)
        beyond = np.isfinite(single) & (np.abs(single.astype(np.float64)) > np.abs(value))
        inexact = np.isfinite(single) & (single.astype(np.float64) != value)
        odd = (np.where(beyond, bits - np.uint32(1), bits) | inexact.astype(np.uint32)).astype(np.uint32)
        return odd.view(np.float32).astype(ml_dtypes.bfloat16)


def numpy_dtype(word: str) -> np.dtype:
    """The numpy dtype of an ONNX word. Raises: DtypeError."""
    try:
        return NUMPY[word]
    except KeyError:
        raise DtypeError(f"element type {word!r} is not one of {', '.join(NUMPY)}") from None


def word_of(dtype: np.dtype) -> str:
    """The ONNX word of a numpy dtype. Raises: DtypeError."""
    try:
        return WORD[np.dtype(dtype)]
    except KeyError:
        raise DtypeError(f"numpy dtype {dtype} has no ONNX element type here") from None


def word_of_onnx(elem_type: int) -> str:
    """The ONNX word of a TensorProto element type. Raises: DtypeError."""
    try:
        return NAME[elem_type]
    except KeyError:
        raise DtypeError(f"ONNX element type {elem_type} is not supported: use one of {', '.join(ONNX)}") from None


def is_float(word: str) -> bool:
    return word in FLOATS


def limits(word: str) -> tuple[int, int]:
    """(qmin, qmax) of an integer type."""
    info = np.iinfo(numpy_dtype(word))
    return int(info.min), int(info.max)
