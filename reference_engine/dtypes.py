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
    # One element a byte here, whatever its width; ONNX's raw data pack the sub-byte ones.
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
    "int2": np.dtype(ml_dtypes.int2),
    "uint2": np.dtype(ml_dtypes.uint2),
    "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
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
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "uint2": 25,
    "int2": 26,
}
NAME: dict[int, str] = {v: k for k, v in ONNX.items()}
WORD: dict[np.dtype, str] = {v: k for k, v in NUMPY.items()}
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOAT8 = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")  # stored and cast, never computed in
BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}  # of types narrower than a byte
SUBBYTE = tuple(BITS)

# Unit roundoff (half an ulp of 1), largest finite number, smallest subnormal, smallest normal.
UNIT = {
    "float32": 2.0**-24,
    "float64": 2.0**-53,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    **{word: 2.0**-4 if "e4" in word else 2.0**-3 for word in FLOAT8},
}
MAX = {
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
    "float16": 65504.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
    **{word: float(ml_dtypes.finfo(NUMPY[word]).max) for word in FLOAT8},
}
TINY = {
    "float32": 2.0**-149,
    "float64": 2.0**-1074,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    **{word: float(ml_dtypes.finfo(NUMPY[word]).smallest_subnormal) for word in FLOAT8},
}
NORMAL = {
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    **{word: float(ml_dtypes.finfo(NUMPY[word]).smallest_normal) for word in FLOAT8},
}


def narrow(value: np.ndarray, word: str) -> np.ndarray:
    """float64 -> a narrower float type in one rounding, half to even.

    ml_dtypes rounds to bfloat16 and to 8 bits through float32, and so twice; a float32 rounded to odd first makes
    the second rounding the only one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if word != "bfloat16" and word not in FLOAT8:
            return value.astype(NUMPY[word])
        single = value.astype(np.float32)
        bits = single.view(np.uint32)
        beyond = np.isfinite(single) & (np.abs(single.astype(np.float64)) > np.abs(value))
        inexact = np.isfinite(single) & (single.astype(np.float64) != value)
        odd = (np.where(beyond, bits - np.uint32(1), bits) | inexact.astype(np.uint32)).astype(np.uint32)
        return odd.view(np.float32).astype(NUMPY[word])


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
    return word in FLOATS or word in FLOAT8


def is_integer(word: str) -> bool:
    return word in INTS or word in SUBBYTE


def limits(word: str) -> tuple[int, int]:
    """(qmin, qmax) of an integer type."""
    info = ml_dtypes.iinfo(numpy_dtype(word))
    return int(info.min), int(info.max)
