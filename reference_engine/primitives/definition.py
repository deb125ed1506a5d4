"""What a primitive is: a shape rule, a meaning, and the attributes its kernels take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import DtypeError, ShapeError
from ..real import Real
from ..types import TensorSpec


@dataclass(frozen=True)
class PrimitiveDef:
    """One primitive.

    `infer(*specs, fn, **attrs)` gives shape and dtype and needs no data; `exact(*reals, fn, policy,
    **attrs)` gives the value and how far an honest kernel may be from it; `fns` maps each function to
    the attribute names its kernels take, in order.
    """

    infer: Callable[..., TensorSpec]
    exact: Callable[..., Real]
    fns: Mapping[str, tuple[str, ...]]


def require_shape(condition: bool, message: str) -> None:
    """Raises: ShapeError."""
    if not condition:
        raise ShapeError(message)


def require_dtype(spec: TensorSpec, allowed: tuple[str, ...], what: str) -> None:
    """Raises: DtypeError."""
    if spec.dtype not in allowed:
        raise DtypeError(f"{what} is {spec.dtype}, expected one of {', '.join(allowed)}")
