"""What example::WeightedSum means: its lowering, and the primitive that it is lowered to."""

from __future__ import annotations

from opgauge.reference_engine import real as r
from opgauge.reference_engine.emit import Emitter, OperatorDef, Value, broadcast, reshape
from opgauge.reference_engine.errors import ShapeError
from opgauge.reference_engine.operators.checks import one_of
from opgauge.reference_engine.primitives.definition import PrimitiveDef, require_dtype, require_shape
from opgauge.reference_engine.real import Real
from opgauge.reference_engine.types import Policy, TensorSpec

PRIMITIVE = "example.WeightedSum"


def lower_weighted_sum(emit: Emitter, x1: Value, x2: Value, weights: Value) -> Value:
    """y = weights[0] * x1 + weights[1] * x2

    Shapes: x1, x2 broadcast to y; weights [2].
    Dtypes: all float32.
    """
    for name, value in (("x1", x1), ("x2", x2), ("weights", weights)):
        one_of(emit, name, value, ("float32",))
    if weights.shape != (2,):
        raise ShapeError(f"{emit.source}: weights is {weights.spec}, expected 2 elements")

    def weight(i: int) -> Value:
        return reshape(emit, emit("DataMove", weights, fn="slice", starts=(i,), ends=(i + 1,), steps=(1,)), ())

    return emit(PRIMITIVE, *broadcast(emit, x1, x2), weight(0), weight(1))


def infer_weighted_sum(x1: TensorSpec, x2: TensorSpec, w1: TensorSpec, w2: TensorSpec, *, fn: str = "") -> TensorSpec:
    for spec in (x1, x2, w1, w2):
        require_dtype(spec, ("float32",), f"{PRIMITIVE}: an input")
    require_shape(x1.shape == x2.shape, f"{PRIMITIVE}: x1 is {x1}, x2 is {x2}")
    require_shape(w1.shape == w2.shape == (), f"{PRIMITIVE}: weights are {w1} and {w2}, expected scalars")
    return x1


def exact_weighted_sum(x1: Real, x2: Real, w1: Real, w2: Real, *, fn: str = "", policy: Policy | None = None) -> Real:
    """y = w1 * x1 + w2 * x2, three roundings; an FMA saves one of them

    Source: N1.
    """
    return r.add(r.mul(x1, w1), r.mul(x2, w2))


PRIMITIVES = {PRIMITIVE: PrimitiveDef(infer_weighted_sum, exact_weighted_sum, {"": ()})}
OPERATORS = {("example", "WeightedSum"): OperatorDef(lower_weighted_sum, domain="example")}
