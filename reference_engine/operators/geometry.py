"""Where the windows of a convolution or a pooling lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..emit import Emitter
from ..errors import ModelError, ShapeError, UnknownOperatorError

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Windows:
    """The attributes of Im2col, all resolved; `pads` begins first, then ends."""

    kernel_shape: Ints
    strides: Ints
    dilations: Ints
    pads: Ints
    out_shape: Ints

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(vars(self))


def windows(
    emit: Emitter,
    spatial: Ints,
    kernel_shape: Ints,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
    ceil_mode: int = 0,
    may_be_empty: bool = False,
) -> Windows:
    """out = floor((in + pads - ((kernel - 1) * dilation + 1)) / stride) + 1, or ceil.

    With ceil_mode a last window that starts in the end padding is dropped. Where the floor formula gives 0 for a
    window that does not fit, the axis is empty if it `may_be_empty` (a pooling), else refused (a convolution).
    Raises: ShapeError where a list has the wrong length or a window does not fit, ModelError for auto_pad,
        UnknownOperatorError where ONNX does not say what auto_pad means.
    Source: ONNX Conv-11, MaxPool-22.
    """
    rank = len(spatial)
    kernel_shape = one_per_axis(emit, "kernel_shape", kernel_shape, 0, rank, 1)
    strides = one_per_axis(emit, "strides", strides, 1, rank, 1)
    dilations = one_per_axis(emit, "dilations", dilations, 1, rank, 1)
    explicit = one_per_axis(emit, "pads", pads, 0, 2 * rank, 0)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"{emit.source}: auto_pad {auto_pad!r} is not NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if auto_pad != "NOTSET" and any(explicit):
        raise ModelError(f"{emit.source}: auto_pad {auto_pad} and pads {explicit} exclude each other: give one of them")
    begins, ends, outs = [], [], []
    for i, (size, kernel, stride, dilation) in enumerate(zip(spatial, kernel_shape, strides, dilations, strict=True)):
        reach = (kernel - 1) * dilation + 1
        if auto_pad.startswith("SAME"):
            out = -(-size // stride)
            total = (out - 1) * stride + reach - size
            if total < -1:
                # Not specified: onnxruntime crops at either end or refuses, by operator.
                raise UnknownOperatorError(
                    f"{emit.source}: auto_pad {auto_pad} with stride {stride} and a window of {reach} on an axis of "
                    f"{size} would pad by {total}; use pads"
                )
            total = max(total, 0)
            begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            end = total - begin
        else:
            begin, end = explicit[i], explicit[rank + i]
            room = size + begin + end - reach
            if auto_pad == "VALID" and ceil_mode and room % stride:
                # 7 elements, kernel 2, stride 2: 3 by the formula of MaxPool-22, 4 by onnx's shape inference.
                raise UnknownOperatorError(
                    f"{emit.source}: ONNX contradicts itself on auto_pad VALID with ceil_mode; use pads"
                )
            out = (-(-room // stride) if ceil_mode else room // stride) + 1
            if room < 0:
                out = out if may_be_empty and not ceil_mode else -1
            if ceil_mode and (out - 1) * stride >= size + begin:
                out -= 1
        if out < 0 or (not out and room >= 0):
            raise ShapeError(
                f"{emit.source}: a window of {reach} (kernel {kernel}, dilation {dilation}) does not fit "
                f"axis {i + 2} of size {size} padded by {begin} and {end}"
            )
        begins.append(begin)
        ends.append(end)
        outs.append(out)
    return Windows(kernel_shape, strides, dilations, (*begins, *ends), tuple(outs))


def one_per_axis(emit: Emitter, name: str, given: Ints | None, default: int, length: int, low: int) -> Ints:
    values = (default,) * length if given is None else tuple(int(v) for v in given)
    if len(values) != length or any(v < low for v in values):
        raise ShapeError(f"{emit.source}: {name} {values} must be {length} numbers of at least {low}")
    return values
