"""Windows of convolutions and pools: what ONNX's pads, strides and dilations are in LiteRT's words.

Portable: the worker of a foreign environment runs this file on Python 3.8 with numpy.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

import numpy as np

from opgauge.reference_engine.errors import UnsupportedError

from .litert_builder import SAME, VALID, Quantization
from .litert_net import Net, Shape


class Window(NamedTuple):
    """Over two axes, a missing first one of length 1. `pads` begin and end of each axis, `out` the output's axes."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    out: tuple[int, int]
    overhang: bool

    @property
    def padded(self) -> bool:
        return any(map(any, self.pads))


def window(attributes: Mapping[str, Any], spatial: Shape, kernel: Shape) -> Window:
    """The window of Conv-11, MaxPool-12 or AveragePool-19. `spatial` has the axes of the ONNX input.

    Raises: UnsupportedError.
    """
    n = len(spatial)
    if n not in (1, 2):
        raise UnsupportedError(f"a window of {n} axes; LiteRT's operators take one or two")
    strides = tuple(attributes.get("strides") or (1,) * n)
    dilations = tuple(attributes.get("dilations") or (1,) * n)
    given = tuple(attributes.get("pads") or (0,) * 2 * n)
    mode = attributes.get("auto_pad", "NOTSET")
    ceil = bool(attributes.get("ceil_mode", 0))
    pads, out, overhang = [], [], False
    for i in range(n):
        reach = (kernel[i] - 1) * dilations[i] + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-spatial[i] // strides[i])
            total = max((count - 1) * strides[i] + reach - spatial[i], 0)
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            pad = (begin, total - begin)
        else:
            pad = (given[i], given[n + i]) if mode == "NOTSET" else (0, 0)
            room = spatial[i] + sum(pad) - reach
            if room < 0 or min(pad) < 0:
                raise UnsupportedError("a window longer than the padded input, or negative pads")
            count = room // strides[i] + 1
            if ceil and room % strides[i] and count * strides[i] < spatial[i] + pad[0]:
                count, overhang = count + 1, True  # a window starts in the data, and reaches beyond the pads
                pad = (pad[0], pad[1] + strides[i] - room % strides[i])
        pads.append(pad)
        out.append(count)
    if n == 1:
        return Window((1, kernel[0]), (1, strides[0]), (1, dilations[0]), ((0, 0), pads[0]), (1, out[0]), overhang)
    return Window(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1]),
        (out[0], out[1]),
        overhang,
    )


def is_same(w: Window, spatial: Shape) -> bool:
    """Whether LiteRT's padding SAME is this padding: as many windows as strides, the odd pad at the end."""
    axes = (1, *spatial) if len(spatial) == 1 else spatial
    for length, k, stride, pad, count in zip(axes, w.kernel, w.strides, w.pads, w.out):
        total = max((count - 1) * stride + k - length, 0)
        if count != -(-length // stride) or pad != (total // 2, total - total // 2):
            return False
    return w.dilations == (1, 1)


def padded(net: Net, x: int, w: Window, quantization: Quantization | None, value: float | None = None) -> int:
    """PAD with the number 0 (the zero point where there is one), or PADV2 with `value`."""
    if not w.padded:
        return x
    tensor = net.tensors[x]
    n, height, width, channels = tensor.shape
    shape = (n, height + sum(w.pads[0]), width + sum(w.pads[1]), channels)
    paddings = net.constant([(0, 0), *w.pads, (0, 0)])
    if value is None:
        return net.op("PAD", (x, paddings), tensor.dtype, shape, quantization)
    fill = net.constant(np.full((1,), value), tensor.dtype, quantization)
    return net.op("PADV2", (x, paddings, fill), tensor.dtype, shape, quantization)


def strides(w: Window) -> dict[str, int]:
    return {"stride_h": w.strides[0], "stride_w": w.strides[1]}


def pool(net: Net, kind: str, x: int, w: Window, same: bool, quantization: Quantization | None) -> int:
    tensor = net.tensors[x]
    shape = (tensor.shape[0], *w.out, tensor.shape[3])
    return net.op(
        kind,
        (x,),
        tensor.dtype,
        shape,
        quantization,
        padding=SAME if same else VALID,
        filter_height=w.kernel[0],
        filter_width=w.kernel[1],
        **strides(w),
    )


def convolution(
    net: Net,
    x: int,
    weights: tuple[str, Quantization | None],
    bias: int,
    w: Window,
    group: int,
    quantization: Quantization | None,
) -> int:
    """CONV_2D or, with one input channel in each group, DEPTHWISE_CONV_2D, of an NHWC tensor that is padded already."""
    name, scale = weights
    tensor = net.tensors[x]
    shape = net.shape(name)
    m, per_group, *_ = shape
    four = (m, per_group, *w.kernel)
    depthwise = per_group == 1 and group > 1
    if scale is not None and depthwise:
        scale = scale._replace(axis=3)
    filters = net.source(name, four, (1, 2, 3, 0) if depthwise else (0, 2, 3, 1), scale)
    options = {
        "padding": VALID,
        **strides(w),
        "dilation_h_factor": w.dilations[0],
        "dilation_w_factor": w.dilations[1],
    }
    if depthwise:
        options["depth_multiplier"] = m // group
    kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    inputs = (x, filters) if bias < 0 else (x, filters, bias)
    return net.op(kind, inputs, tensor.dtype, (tensor.shape[0], *w.out, m), quantization, **options)
