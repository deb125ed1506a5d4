"""Recurrent layers, unrolled over their steps: each gate one sum of products over the input and the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...emit import Emitter, OperatorDef, Value, elementwise, expand, reshape, scalar, transpose
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ..checks import one_of, same_dtype, text, versioned

FLOATS = ("float32", "float64")
ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu"}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
# Every step becomes nodes of its own.
MAX_STEPS = 1024


@dataclass(frozen=True)
class Layer:
    """One direction: weights [I+H, gates*H] of input and state joined, the biases of both, activations, steps in order.

    `W`, `R` [gates*H, ...] and `Wb`, `Rb` [1, gates*H] apart, `P` [3*H] the peepholes of LSTM.
    """

    W: Value
    R: Value
    Wb: Value | None
    Rb: Value | None
    P: Value | None
    activations: tuple[str, ...]
    order: Sequence[int]


def cut(emit: Emitter, x: Value, axis: int, start: int, end: int) -> Value:
    """x[.., start:end, ..] along one axis."""
    if (start, end) == (0, x.shape[axis]):
        return x
    starts = tuple(start if i == axis else 0 for i in range(x.rank))
    ends = tuple(end if i == axis else n for i, n in enumerate(x.shape))
    return emit("DataMove", x, fn="slice", starts=starts, ends=ends, steps=(1,) * x.rank)


def _joined(emit: Emitter, axis: int, *parts: Value) -> Value:
    return parts[0] if len(parts) == 1 else emit("DataMove", *parts, fn="concat", axis=axis)


def _gates(emit: Emitter, layer: Layer, x: Value, h: Value, first: int, last: int) -> Value:
    """[x, h] @ [W, R]' + Wb + Rb for the gates first..last-1: one sum, so that any order of it is honest (N1)."""
    size = h.shape[1]
    low, high = first * size, last * size
    weights = _joined(emit, 1, cut(emit, layer.W, 0, low, high), cut(emit, layer.R, 0, low, high))
    y = emit("Gemm", _joined(emit, 1, x, h), transpose(emit, weights, (1, 0)))
    for bias in (layer.Wb, layer.Rb):
        y = y if bias is None else elementwise(emit, "add", y, cut(emit, bias, 1, low, high))
    return y


def _gate(emit: Emitter, y: Value, k: int, size: int) -> Value:
    return cut(emit, y, 1, k * size, (k + 1) * size)


def _apply(emit: Emitter, fn: str, x: Value) -> Value:
    """The text of these operators writes tanh with exp."""
    return emit("Elementwise", x, fn=fn, **({"by_exp": True} if fn == "tanh" else {}))


def _lstm_step(emit: Emitter, layer: Layer, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    """i, f = f(..), C = f C + i g(..), o = f(..), H = o h(C); gates lie in the order i, o, f, c."""
    assert c is not None
    f, g, h_fn = layer.activations
    size = h.shape[1]
    y = _gates(emit, layer, x, h, 0, 4)
    i, o, forget, cell = (_gate(emit, y, k, size) for k in range(4))

    def peeped(gate: Value, k: int, state: Value) -> Value:
        if layer.P is None:
            return gate
        weight = reshape(emit, cut(emit, layer.P, 0, k * size, (k + 1) * size), (1, size))
        return elementwise(emit, "add", gate, elementwise(emit, "mul", state, weight))

    i, forget = _apply(emit, f, peeped(i, 0, c)), _apply(emit, f, peeped(forget, 2, c))
    kept, new = elementwise(emit, "mul", forget, c), elementwise(emit, "mul", i, _apply(emit, g, cell))
    c = elementwise(emit, "add", kept, new)
    o = _apply(emit, f, peeped(o, 1, c))
    return elementwise(emit, "mul", o, _apply(emit, h_fn, c)), c


def _rnn_step(emit: Emitter, layer: Layer, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    """H = f(x W' + h R' + Wb + Rb)"""
    return _apply(emit, layer.activations[0], _gates(emit, layer, x, h, 0, 1)), None


def _gru_step(
    emit: Emitter, layer: Layer, x: Value, h: Value, c: Value | None, before_reset: bool = False
) -> tuple[Value, Value | None]:
    """z, r = f(..), n = g(..), H = (1 - z) n + z h; gates lie in the order z, r, h."""
    f, g = layer.activations
    size = h.shape[1]
    y = _gates(emit, layer, x, h, 0, 2)
    z, r = (_apply(emit, f, _gate(emit, y, k, size)) for k in range(2))
    if before_reset:
        own = emit("Gemm", h, transpose(emit, cut(emit, layer.R, 0, 2 * size, 3 * size), (1, 0)))
        if layer.Rb is not None:
            own = elementwise(emit, "add", own, cut(emit, layer.Rb, 1, 2 * size, 3 * size))
        given = emit("Gemm", x, transpose(emit, cut(emit, layer.W, 0, 2 * size, 3 * size), (1, 0)))
        if layer.Wb is not None:
            given = elementwise(emit, "add", given, cut(emit, layer.Wb, 1, 2 * size, 3 * size))
        n = elementwise(emit, "add", given, elementwise(emit, "mul", r, own))
    else:
        n = _gates(emit, layer, x, elementwise(emit, "mul", r, h), 2, 3)
    n = _apply(emit, g, n)
    rest = elementwise(emit, "sub", expand(emit, scalar(emit, 1, z.dtype), z.shape), z)
    return elementwise(emit, "add", elementwise(emit, "mul", rest, n), elementwise(emit, "mul", z, h)), None


def _gru_step_before(emit: Emitter, layer: Layer, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    return _gru_step(emit, layer, x, h, c, True)


Step = Callable[[Emitter, Layer, Value, Value, "Value | None"], "tuple[Value, Value | None]"]
GATES: dict[Step, int] = {_lstm_step: 4, _rnn_step: 1, _gru_step: 3, _gru_step_before: 3}


def _activations(emit: Emitter, names: tuple[str, ...], default: tuple[str, ...], directions: int) -> tuple[str, ...]:
    """Of all directions, in order. Raises: UnknownOperatorError, ModelError."""
    wanted = names or default * directions
    if len(wanted) != len(default) * directions:
        raise ModelError(f"{emit.source}: activations has {len(wanted)} names, expected {len(default) * directions}")
    unknown = [w for w in wanted if w.lower() not in ACTIVATIONS]
    if unknown:
        raise UnknownOperatorError(
            f"{emit.source}: activation {unknown[0]!r} is not lowered, {', '.join(ACTIVATIONS)} are"
        )
    return tuple(ACTIVATIONS[w.lower()] for w in wanted)


def _shaped(emit: Emitter, name: str, x: Value, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ShapeError(f"{emit.source}: {name} is {text(x.shape)}, expected {text(shape)}")


def _unrolled(
    emit: Emitter, step: Step, default: tuple[str, ...], X: Value, W: Value, R: Value, B: Value | None,
    sequence_lens: Value | None, states: dict[str, Value | None], P: Value | None, options: dict[str, Any],
) -> tuple[Value, ...]:  # fmt: skip
    """Y, and the last state of each kind, all directions. Raises: ModelError and its kinds."""
    for name in ("activation_alpha", "activation_beta", "clip", "input_forget"):
        if options.get(name):
            raise UnknownOperatorError(f"{emit.source}: {name}={options[name]} is not lowered")
    direction, layout, hidden = options["direction"], options["layout"], options["hidden_size"]
    given = {"X": X, "W": W, "R": R} | {k: v for k, v in (("B", B), ("P", P)) if v is not None}
    same_dtype(emit, **given)
    one_of(emit, "X", X, FLOATS)
    if direction not in DIRECTIONS:
        raise ModelError(f"{emit.source}: direction {direction!r} is not one of {', '.join(DIRECTIONS)}")
    if X.rank != 3 or R.rank != 3:
        raise ShapeError(f"{emit.source}: X is {text(X.shape)} and R is {text(R.shape)}, both must have three axes")
    X = transpose(emit, X, (1, 0, 2)) if layout else X
    length, batch, width = X.shape
    many, size = DIRECTIONS[direction], R.shape[2]
    gates = GATES[step]
    half = gates * size
    if length > MAX_STEPS or not length:
        raise ShapeError(f"{emit.source}: {length} steps; 1 to {MAX_STEPS} are unrolled")
    if hidden is not None and hidden != size:
        raise ShapeError(f"{emit.source}: hidden_size is {hidden} but R is {text(R.shape)}")
    _shaped(emit, "R", R, (many, gates * size, size))
    _shaped(emit, "W", W, (many, gates * size, width))
    if B is not None:
        _shaped(emit, "B", B, (many, 2 * gates * size))
    if P is not None:
        _shaped(emit, "P", P, (many, 3 * size))
    if sequence_lens is not None and any(emit.data(sequence_lens, "sequence_lens").ravel() != length):
        raise UnknownOperatorError(f"{emit.source}: sequence_lens shorter than X are not lowered")
    fns = _activations(emit, options["activations"] or (), default, many)
    steps = [reshape(emit, cut(emit, X, 0, t, t + 1), (batch, width)) for t in range(length)]
    outputs: list[list[Value]] = [[] for _ in range(length)]
    last: list[list[Value]] = [[] for _ in states]
    for d in range(many):
        backward = direction == "reverse" or d == 1
        layer = Layer(
            reshape(emit, cut(emit, W, 0, d, d + 1), (half, width)),
            reshape(emit, cut(emit, R, 0, d, d + 1), (half, size)),
            _bias(emit, B, d, 0, half),
            _bias(emit, B, d, 1, half),
            None if P is None else reshape(emit, cut(emit, P, 0, d, d + 1), (3 * size,)),
            fns[d * len(default) : (d + 1) * len(default)],
            range(length)[:: -1 if backward else 1],
        )
        now = [_initial(emit, name, x, d, (many, batch, size), X.dtype, layout) for name, x in states.items()]
        for t in layer.order:
            h, c = step(emit, layer, steps[t], now[0], now[1] if len(now) > 1 else None)
            now = [h] if c is None else [h, c]
            outputs[t].append(reshape(emit, h, (1, 1, batch, size)))
        for kept, state in zip(last, now, strict=True):
            kept.append(reshape(emit, state, (1, batch, size)))
    y = _joined(emit, 0, *(_joined(emit, 1, *row) for row in outputs))
    ends = [_joined(emit, 0, *kept) for kept in last]
    if layout:
        y, ends = transpose(emit, y, (2, 0, 1, 3)), [transpose(emit, e, (1, 0, 2)) for e in ends]
    return (y, *ends)


def _bias(emit: Emitter, B: Value | None, d: int, which: int, half: int) -> Value | None:
    """[1, gates*H] of one direction: Wb (0) or Rb (1)."""
    if B is None:
        return None
    return reshape(emit, cut(emit, cut(emit, B, 0, d, d + 1), 1, which * half, (which + 1) * half), (1, half))


def _initial(
    emit: Emitter, name: str, x: Value | None, d: int, shape: tuple[int, int, int], dtype: str, layout: int
) -> Value:
    _, batch, size = shape
    if x is None:
        return expand(emit, scalar(emit, 0, dtype), (batch, size))
    x = transpose(emit, x, (1, 0, 2)) if layout and x.rank == 3 else x
    _shaped(emit, name, x, shape)
    one_of(emit, name, x, (dtype,))
    return reshape(emit, cut(emit, x, 0, d, d + 1), (batch, size))


Words = tuple[str, ...]
Numbers = tuple[float, ...]


def lower_lstm(
    emit: Emitter, X: Value, W: Value, R: Value, B: Value | None = None, sequence_lens: Value | None = None,
    initial_h: Value | None = None, initial_c: Value | None = None, P: Value | None = None, *,
    activation_alpha: Numbers | None = None, activation_beta: Numbers | None = None, activations: Words | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, input_forget: int = 0,
    layout: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """C = f(..) C + f(..) g(..), H = f(..) h(C)

    Shapes: X [S,N,I], W [D,4H,I], R [D,4H,H], B [D,8H], P [D,3H] -> Y [S,D,N,H], Y_h and Y_c [D,N,H].
    Dtypes: float32, float64; every sequence as long as X.
    Source: ONNX LSTM-22.
    """
    options = {
        "activation_alpha": activation_alpha, "activation_beta": activation_beta, "activations": activations,
        "clip": clip, "direction": direction, "hidden_size": hidden_size, "input_forget": input_forget,
        "layout": layout,
    }  # fmt: skip
    states = {"initial_h": initial_h, "initial_c": initial_c}
    return _unrolled(
        emit, _lstm_step, ("Sigmoid", "Tanh", "Tanh"), X, W, R, B, sequence_lens, states, P, options
    )  # fmt: skip


def lower_gru(
    emit: Emitter, X: Value, W: Value, R: Value, B: Value | None = None, sequence_lens: Value | None = None,
    initial_h: Value | None = None, *, activation_alpha: Numbers | None = None,
    activation_beta: Numbers | None = None, activations: Words | None = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """H = (1 - z) g(..) + z H

    Shapes: X [S,N,I], W [D,3H,I], R [D,3H,H], B [D,6H] -> Y [S,D,N,H], Y_h [D,N,H].
    Dtypes: float32, float64; every sequence as long as X.
    Source: ONNX GRU-22.
    """
    options = {
        "activation_alpha": activation_alpha, "activation_beta": activation_beta, "activations": activations,
        "clip": clip, "direction": direction, "hidden_size": hidden_size, "layout": layout,
    }  # fmt: skip
    step: Step = _gru_step_before if linear_before_reset else _gru_step
    states = {"initial_h": initial_h}
    return _unrolled(emit, step, ("Sigmoid", "Tanh"), X, W, R, B, sequence_lens, states, None, options)


def lower_rnn(
    emit: Emitter, X: Value, W: Value, R: Value, B: Value | None = None, sequence_lens: Value | None = None,
    initial_h: Value | None = None, *, activation_alpha: Numbers | None = None,
    activation_beta: Numbers | None = None, activations: Words = ("Tanh", "Tanh"), clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """H = f(X W' + H R' + Wb + Rb)

    Shapes: X [S,N,I], W [D,H,I], R [D,H,H], B [D,2H] -> Y [S,D,N,H], Y_h [D,N,H].
    Dtypes: float32, float64; every sequence as long as X.
    Source: ONNX RNN-22. Its default names two activations, whatever the direction.
    """
    options = {
        "activation_alpha": activation_alpha, "activation_beta": activation_beta,
        "activations": activations[: DIRECTIONS.get(direction, 1)] if activations == ("Tanh", "Tanh") else activations,
        "clip": clip, "direction": direction, "hidden_size": hidden_size, "layout": layout,
    }  # fmt: skip
    states = {"initial_h": initial_h}
    return _unrolled(emit, _rnn_step, ("Tanh",), X, W, R, B, sequence_lens, states, None, options)


_LAYOUT = (14, None)
RECURRENT: dict[tuple[str, str], OperatorDef] = {
    ("", "LSTM"): OperatorDef(versioned(lower_lstm, layout=_LAYOUT), since=7),
    ("", "GRU"): OperatorDef(versioned(lower_gru, layout=_LAYOUT), since=7),
    ("", "RNN"): OperatorDef(versioned(lower_rnn, layout=_LAYOUT), since=7),
}
