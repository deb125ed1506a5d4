"""What an adapter is and what its arithmetic does, measured once per process: recorded, never assumed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import Array

from . import dispatch, shader
from .dispatch import Device
from .plan import MAX_ITERATIONS, Builder, Program

DIVIDE, CONTRACT, MULTIPLY, CONVERT, ROUND, MAX, ADD, LOOP = range(8)
LOOPS = 70_000


def measure(device: Device, what: int, pairs: Array) -> Array:
    """Element i of the answer of probe.wgsl for operands pairs[i]."""
    build = Builder(device.limit, "probe")
    x = build.constant(np.ascontiguousarray(pairs).view(np.uint32).reshape(-1))
    out = build.temporary((len(pairs),), "uint32")
    code = shader.per_element(("uint32",), "uint32", shader.text("probe.wgsl"))
    build.dispatch(code, (x,), (out,), (out.size, what), out.size)
    program = Program((), tuple(build.steps), tuple(build.sizes), build.constants, {}, (out,), (), {})
    loaded = dispatch.load_program(device, program)
    (answer,) = dispatch.run_program(device, loaded, {}).outputs
    dispatch.unload(device, loaded)
    return answer


def floats(device: Device, what: int, pairs: Sequence[tuple[float, float]]) -> Array:
    return measure(device, what, np.asarray(pairs, np.float32)).view(np.float32)


def division_error(device: Device) -> float:
    """Largest error of `/` in ulp over operands of one binade each."""
    pairs = np.random.default_rng(7).uniform(1.0, 2.0, (4096, 2)).astype(np.float32)
    got = measure(device, DIVIDE, pairs).view(np.float32).astype(np.float64)
    exact = pairs[:, 0].astype(np.float64) / pairs[:, 1].astype(np.float64)
    return float(np.max(np.abs(got - exact) / np.spacing(exact.astype(np.float32))))


def loop_cap(device: Device) -> int:
    """How many iterations ran of LOOPS."""
    return int(measure(device, LOOP, np.array([[LOOPS, 1]], np.uint32))[0])


def facts(device: Device) -> dict[str, str]:
    """The adapter and its measured arithmetic.

    Raises: BackendUnavailableError where loops end before the kernels' own.
    """
    info, features = device.adapter.info, device.adapter.features
    cap = loop_cap(device)
    if cap < MAX_ITERATIONS:
        name = dispatch.describe(device.adapter)
        raise BackendUnavailableError(f"wgpu: {name} ends loops after {cap} iterations, kernels need {MAX_ITERATIONS}")
    tiny = 2.0**-126
    product, total = floats(device, MULTIPLY, [(tiny, 0.5)])[0], floats(device, ADD, [(tiny, -tiny / 2)])[0]
    fused = floats(device, CONTRACT, [(1 + 2.0**-12, -(1 + 2.0**-11))])[0]
    converted = measure(device, CONVERT, np.array([[2**24 + 1, 0], [2**24 + 3, 0]], np.int32)).view(np.float32)
    rounded = floats(device, ROUND, [(0.5, 0), (1.5, 0), (2.5, 0), (-0.5, 0)])
    return {
        "device": info["device"],
        "adapter_type": info["adapter_type"],
        "driver": info["description"],
        "api": info["backend_type"],
        "features": " ".join(f for f in ("shader-f16", "subgroup", "timestamp-query") if f in features),
        "binding_limit": str(device.limit),
        "loop_cap": "none" if cap == LOOPS else str(cap),
        "contraction": "fused" if fused else "none seen",
        "division_error": f"{division_error(device):.3f} ulp (builtin; kernels divide in integers)",
        "subnormals": "kept" if product and total else "flushed",
        "int_to_float": "half to even" if list(converted) == [2**24, 2**24 + 4] else "not half to even",
        "round": "half to even" if list(rounded) == [0, 2, 2, 0] else "not half to even",
        "max_of_nan": "NaN" if np.isnan(floats(device, MAX, [(np.nan, 1.0)])[0]) else "number (kernels compare bits)",
        "packed_dot": str(device.packed_dot),
        "timestamps": f"{device.tick_ns:g} ns a tick" if device.tick_ns else "none: no timestamp-query, or no period",
    }
