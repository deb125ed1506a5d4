"""What the tests of others would have said of the same outputs: their criteria, written anew from public facts.

Each is given the best that its own reference could be, the correctly rounded value, and sees only elements that the
specification decides. A wrong count, shape or element type is seen by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.real import Real
from opgauge.reference_engine.types import Array, Exact

U = 2.0**-24
HALF = ("float16", "bfloat16")


class Output(NamedTuple):
    """Decided elements of one output: what was returned, the correctly rounded value, and what both are in reals."""

    got: Array
    value: Array
    exact: Exact
    decided: Array
    real: Real

    @property
    def quantized(self) -> bool:
        return self.exact.zero_point is not None

    @property
    def floating(self) -> bool:
        return dt.is_float(self.exact.dtype)

    def of(self, array: Array) -> Array:
        """The decided elements of an array of the output's shape."""
        return np.broadcast_to(np.asarray(array, np.float64), self.exact.value.shape)[self.decided]


@dataclass(frozen=True)
class Criterion:
    """`accepts(output)`; `source` where its numbers can be read."""

    name: str
    text: str
    accepts: Callable[[Output], bool]
    source: str


def near(output: Output, bound: Array | float) -> bool:
    """|got - value| <= bound; NaN and infinities equal themselves."""
    with np.errstate(all="ignore"):
        same = (output.got == output.value) | (np.isnan(output.got) & np.isnan(output.value))
        return bool((same | (np.abs(output.got - output.value) <= bound)).all())


def relative(output: Output) -> Array:
    return np.abs(output.value)


def onnx(output: Output) -> bool:
    return near(output, 1e-7 + 1e-3 * relative(output))


def tflite(output: Output) -> bool:
    return near(output, 4.0 if output.quantized else 1e-5 if output.floating else 0.0)


def nnapi(output: Output) -> bool:
    if output.quantized:
        return near(output, 1.0)
    if not output.floating:
        return near(output, 0.0)
    unit = 2.0**-10 if output.exact.dtype in HALF else 2.0**-23
    return near(output, (5 * unit if unit > 1e-5 else 1e-5) + 5 * unit * relative(output))


def xnnpack(output: Output) -> bool:
    if output.quantized and output.exact.real is not None:
        low, high = dt.limits(output.exact.dtype)
        zero = output.of(output.exact.zero_point)  # type: ignore[arg-type]
        real = np.clip(output.of(output.exact.real) + zero, low, high)
        return bool((np.abs(output.got - real) <= 0.9).all())
    if not output.floating:
        return near(output, 0.0)
    least, unit = (1e-4, 1e-2) if output.exact.dtype in HALF else (1e-5, 1e-6)
    return near(output, np.maximum(least, unit * relative(output)))


def nmse(output: Output) -> bool:
    finite = np.isfinite(output.value)
    if not bool((np.isfinite(output.got) == finite).all()):
        return False
    got, value = output.got[finite], output.value[finite]
    with np.errstate(all="ignore"):
        error, signal = float(((got - value) ** 2).sum()), float((value**2).sum())
    return error <= 5e-4 * signal if np.isfinite(signal) else True


def onednn(output: Output) -> bool:
    if output.floating:
        threshold = dt.UNIT[output.exact.dtype] * 2 if output.exact.dtype in HALF else 1e-6
        return near(output, np.where(relative(output) > 1e-5, threshold * relative(output), threshold))
    bound = np.zeros(output.got.shape)
    if output.quantized and output.exact.real is not None:
        real = output.of(output.exact.real)
        with np.errstate(all="ignore"):
            bound = np.where(np.abs(np.floor(real) + 0.5 - real) < 9e-6, 1.0, 0.0)
    return near(output, bound)


def tosa(output: Output) -> bool:
    if not output.floating or output.exact.dtype == "float64":
        return near(output, 0.0)
    unit = dt.UNIT[output.exact.dtype]
    if output.real.k < 2 or output.real.mag is None:  # no sum: an element-wise function, or one IEEE operation
        same = bool((output.exact.lo == output.exact.hi).all())
        return near(output, 0.0 if same else 10 * unit * relative(output))
    mag, terms = output.of(output.real.mag), float(output.real.k)
    with np.errstate(all="ignore"):
        scale = np.maximum(unit * mag, 1e-300)
        error = np.where(output.got == output.value, 0.0, (output.got - output.of(output.real.value)) / scale)
        finite = np.isfinite(output.value)
        if not near(output, np.where(finite, terms * scale, 0.0)):
            return False
        error = error[finite]
        many = float(len(error))
        lean = abs(float(error.sum())) <= 2 * np.sqrt(terms * many)
        return bool(lean and float((error**2).sum()) <= 0.4 * terms * many) if terms > 2 else True


CRITERIA = (
    Criterion(
        "ONNX",
        "\\|y - r\\| <= 1e-7 + 1e-3 \\|r\\|",
        onnx,
        "onnx, backend test runner: rtol 1e-3, atol 1e-7 of every node test that sets none",
    ),
    Criterion(
        "TFLite",
        "4 quanta; floats 1e-5",
        tflite,
        "TensorFlow Lite kernel tests: 4 times the output scale for quantized results, ArrayFloatNear 1e-5 else",
    ),
    Criterion(
        "NNAPI",
        "1 quantum; floats 1e-5 + 5 ulp",
        nnapi,
        "Android NNAPI CTS, generated tests: error 1 for quantized 8 bits, 1e-5 and 5 ulp for float32, 5 ulp of "
        "float16 when relaxed",
    ),
    Criterion(
        "XNNPACK",
        "0.9 of a quantum from the real; floats 1e-5, 1e-6 \\|r\\|",
        xnnpack,
        "XNNPACK microkernel testers: EXPECT_NEAR with 0.9 on the unrounded result, max(1e-5, 1e-6 of the value) "
        "for float32",
    ),
    Criterion(
        "NMSE",
        "sum (y - r)^2 <= 5e-4 sum r^2",
        nmse,
        "ggml, test-backend-ops: normalised mean square error of MUL_MAT, 5e-4",
    ),
    Criterion(
        "oneDNN",
        "equal, or next to a tie within 9e-6; floats 1e-6 \\|r\\|",
        onednn,
        "oneDNN benchdnn, compare: relative difference up to the driver's threshold; integers may differ where the "
        "float32 result lies within 9e-6 of x.5",
    ),
    Criterion(
        "TOSA",
        "integers equal; sums: K u sum \\|a b\\|, and sums of errors; functions 5 ulp",
        tosa,
        "TOSA specification, precision scaling and the dot product criterion: squares up to 0.4 K T, sum up to "
        "2 sqrt(K T), in units of u sum |a b|",
    ),
)


def rejecting(exacts: Sequence[Exact], reals: Sequence[Real], outputs: Sequence[Array]) -> list[str]:
    """The names of the criteria that would have failed these outputs."""
    if len(exacts) != len(outputs) or any(
        dt.WORD.get(y.dtype) != e.dtype or y.shape != e.value.shape for e, y in zip(exacts, outputs, strict=True)
    ):
        return [c.name for c in CRITERIA]
    seen = []
    for exact, real, y in zip(exacts, reals, outputs, strict=True):
        decided = np.ones(y.shape, bool) if exact.free is None else ~np.broadcast_to(exact.free, y.shape)
        got, value = (np.asarray(x).astype(np.float64)[decided] for x in (y, exact.value))
        seen.append(Output(got, value, exact, decided, real))
    return [c.name for c in CRITERIA if not all(c.accepts(each) for each in seen)]
