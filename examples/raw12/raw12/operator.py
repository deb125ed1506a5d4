"""What example::DequantizeRaw12 means, in primitives that opgauge has."""

from __future__ import annotations

import math

from opgauge.reference_engine.emit import Emitter, OperatorDef, Value, elementwise, reshape, scalar
from opgauge.reference_engine.emit import cast as to_dtype
from opgauge.reference_engine.errors import ShapeError
from opgauge.reference_engine.operators.checks import one_of
from opgauge.reference_engine.operators.quantization import check_scale, per_tensor


def lower_dequantize_raw12(emit: Emitter, packed: Value, black: Value, gain: Value) -> Value:
    """y = (v - black) * gain, v the 12-bit pixels

    Bytes a, b, c hold the pixels a << 4 | (c & 15) and b << 4 | c >> 4.
    Shapes: packed [..., 3n], y [..., 2n]; black, gain scalars.
    Dtypes: packed uint8, black uint16, gain and y float32.
    Source: MIPI CSI-2, RAW12.
    """
    one_of(emit, "packed", packed, ("uint8",))
    one_of(emit, "black", black, ("uint16",))
    one_of(emit, "gain", gain, ("float32",))
    check_scale(emit, "gain", gain)
    if packed.rank == 0 or packed.shape[-1] % 3:
        raise ShapeError(f"{emit.source}: packed is {packed.spec}, its last dimension must be a multiple of 3")
    *outer, last = packed.shape
    groups = math.prod(outer) * last // 3
    x = to_dtype(emit, reshape(emit, packed, (groups, 3)), "uint16")
    high, low = part(emit, x, 0, 2), part(emit, x, 2, 3)
    first = elementwise(emit, "and", low, scalar(emit, 15, "uint16"))
    second = elementwise(emit, "shift_right", low, scalar(emit, 4, "uint16"))
    rest = emit("DataMove", first, second, fn="concat", axis=1)
    pixels = elementwise(emit, "or", elementwise(emit, "shift_left", high, scalar(emit, 4, "uint16")), rest)
    parameters = (reshape(emit, per_tensor(emit, n, v), (1,)) for n, v in (("gain", gain), ("black", black)))
    y = emit("Dequantize", reshape(emit, pixels, (1, 1, 2 * groups)), *parameters, to="float32")
    return reshape(emit, y, (*outer, last // 3 * 2))


def part(emit: Emitter, x: Value, start: int, end: int) -> Value:
    """Columns start to end of a matrix."""
    return emit("DataMove", x, fn="slice", starts=(0, start), ends=(x.shape[0], end), steps=(1, 1))


OPERATORS = {("example", "DequantizeRaw12"): OperatorDef(lower_dequantize_raw12, domain="example")}
