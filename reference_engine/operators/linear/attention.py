"""Attention and rotary embeddings, decomposed as their function bodies are."""

from __future__ import annotations

import math

import numpy as np

from ... import dtypes as dt
from ...emit import Emitter, OperatorDef, Value, broadcast_shape, cast, elementwise, expand, reshape, scalar, transpose
from ...errors import ModelError, ShapeError, UnknownOperatorError
from ...types import Array
from ..checks import dtype_of, one_of, same_dtype, text, versioned, widen


def _heads(emit: Emitter, name: str, x: Value, heads: int | None) -> Value:
    """[B,H,S,D], a 3-D [B,S,H*D] taken apart. Raises: ShapeError."""
    if x.rank == 4:
        return x
    if x.rank != 3 or not heads or x.shape[2] % heads:
        raise ShapeError(
            f"{emit.source}: {name} is {text(x.shape)}, expected [B,H,S,D] or [B,S,H*D] with its number of heads"
        )
    batch, length, hidden = x.shape
    return transpose(emit, reshape(emit, x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def _grouped(emit: Emitter, x: Value, heads: int) -> Value:
    """Each head of keys or values repeated for the query heads that share it."""
    batch, own, length, size = x.shape
    if own == heads:
        return x
    if heads % own:
        raise ShapeError(f"{emit.source}: {heads} query heads are no multiple of {own} key and value heads")
    apart = expand(emit, reshape(emit, x, (batch, own, 1, length, size)), (batch, own, heads // own, length, size))
    return reshape(emit, apart, (batch, heads, length, size))


def _visible(queries: int, keys: int, past: int, is_causal: int, left: int, right: int) -> Array:
    """[S,T]: key j is attended by query p = i + past where p - left <= j <= p + right, -1 being no bound.

    Causal order is a right bound of 0.
    """
    at, key = np.arange(queries)[:, None] + past, np.arange(keys)[None, :]
    right = 0 if is_causal else right
    return ((key <= at + right) | (right < 0)) & ((key >= at - left) | (left < 0))


def _masked(emit: Emitter, scores: Value, attn_mask: Value | None, visible: Array) -> Value:
    """scores + bias: -inf where a mask is False or the key is out of the query's sight."""
    if not visible.all():
        bias = np.where(visible, 0.0, -np.inf).astype(dt.numpy_dtype(scores.dtype))
        scores = elementwise(emit, "add", scores, emit.constant(bias))
    if attn_mask is None:
        return scores
    if broadcast_shape(emit, attn_mask.shape, scores.shape) != scores.shape:
        raise ShapeError(
            f"{emit.source}: attn_mask is {text(attn_mask.shape)}, it does not broadcast to {text(scores.shape)}"
        )
    if attn_mask.dtype != "bool":
        return elementwise(emit, "add", scores, cast(emit, attn_mask, scores.dtype))
    hidden = scalar(emit, -np.inf, scores.dtype)
    return emit("Elementwise", *(expand(emit, v, scores.shape) for v in (attn_mask, scores, hidden)), fn="where")


def _softmax(emit: Emitter, x: Value) -> Value:
    """Over the last axis; a row that is -inf throughout gives zeros."""
    rows = (*x.shape[:-1], 1)
    lowest = scalar(emit, -dt.MAX[x.dtype], x.dtype)
    top = elementwise(emit, "max", reshape(emit, emit("Reduce", x, fn="max"), rows), lowest)
    e = emit("Elementwise", elementwise(emit, "sub", x, top), fn="exp")
    total = elementwise(
        emit, "max", reshape(emit, emit("Reduce", e, fn="sum"), rows), scalar(emit, dt.NORMAL[x.dtype], x.dtype)
    )
    return elementwise(emit, "div", e, total, recip=True)


def lower_attention(
    emit: Emitter,
    Q: Value,
    K: Value,
    V: Value,
    attn_mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    nonpad_kv_seqlen: Value | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Value | tuple[Value, ...]:
    """Y = softmax(softcap * tanh(Q' K'^T / softcap) + mask) V, with Q' = Q sqrt(scale), K' = K sqrt(scale)

    Shapes: Q [B,H,S,D] or [B,S,H*D]; K and V with Hk heads, H a multiple of Hk; mask broadcastable to [B,H,S,T].
    Dtypes: floats, 16-bit ones computed in float32; the mask bool or as Q. A row without any key is 0.
    Source: ONNX Attention-23, 24, 25.
    """
    same_dtype(emit, Q=Q, K=K, V=V)
    one_of(emit, "Q", Q, dt.FLOATS)
    if Q.dtype in ("float16", "bfloat16"):
        # The standard's function rounds each step to the 16-bit type, fused kernels do not: neither is wrong.
        raise UnknownOperatorError(f"{emit.source}: {Q.dtype} attention is not lowered; float32 and float64 are")
    if nonpad_kv_seqlen is not None:
        raise UnknownOperatorError(f"{emit.source}: nonpad_kv_seqlen is not lowered; give a mask")
    if (past_key is None) != (past_value is None):
        raise ModelError(f"{emit.source}: past_key and past_value must both be given or both be absent")
    if softmax_precision is not None:
        dtype_of(emit, "softmax_precision", softmax_precision)
    q, k, v = _heads(emit, "Q", Q, q_num_heads), _heads(emit, "K", K, kv_num_heads), _heads(emit, "V", V, kv_num_heads)
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k = emit("DataMove", past_key, k, fn="concat", axis=2)
        v = emit("DataMove", past_value, v, fn="concat", axis=2)
    present = (k, v)
    heads, size = q.shape[1], q.shape[3]
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2] or k.shape[3] != size:
        raise ShapeError(f"{emit.source}: Q {text(q.shape)}, K {text(k.shape)} and V {text(v.shape)} do not fit")
    q, k, v = widen(emit, q), widen(emit, _grouped(emit, k, heads)), widen(emit, _grouped(emit, v, heads))
    root = scalar(emit, math.sqrt(1 / math.sqrt(size) if scale is None else scale), q.dtype)
    keys = transpose(emit, elementwise(emit, "mul", k, root), (0, 1, 3, 2))
    scores = emit("Gemm", elementwise(emit, "mul", q, root), keys)
    stages = [scores]
    if softcap:
        cap = scalar(emit, softcap, q.dtype)
        bent = emit("Elementwise", elementwise(emit, "div", scores, cap, recip=True), fn="tanh")
        scores = elementwise(emit, "mul", bent, cap)
    stages.append(scores)
    visible = _visible(scores.shape[2], scores.shape[3], past, is_causal, left_window_size, right_window_size)
    scores = _masked(emit, scores, attn_mask, visible)
    weights = _softmax(emit, scores)
    stages += [scores, weights]
    y = cast(emit, emit("Gemm", weights, v), Q.dtype)
    if Q.rank == 3:
        batch, _, length, width = y.shape
        y = reshape(emit, transpose(emit, y, (0, 2, 1, 3)), (batch, length, heads * width))
    if emit.n_outputs == 1:
        return y
    if not 0 <= qk_matmul_output_mode < len(stages):
        raise ModelError(f"{emit.source}: qk_matmul_output_mode is {qk_matmul_output_mode}, expected 0 to 3")
    return (y, *present, cast(emit, stages[qk_matmul_output_mode], Q.dtype))[: emit.n_outputs]


def _angles(emit: Emitter, name: str, cache: Value, position_ids: Value | None, shape: tuple[int, ...]) -> Value:
    """One value per token and pair: `shape` [B,S,D/2], taken by position from a [P,D/2] cache. Raises: ShapeError."""
    if position_ids is None:
        if cache.shape != shape:
            raise ShapeError(
                f"{emit.source}: {name} is {text(cache.shape)}, expected {text(shape)} without position_ids"
            )
        return cache
    one_of(emit, "position_ids", position_ids, ("int64",))
    if cache.rank != 2 or cache.shape[1] != shape[2] or position_ids.shape != shape[:2]:
        raise ShapeError(
            f"{emit.source}: {name} is {text(cache.shape)} and position_ids {text(position_ids.shape)}, "
            f"expected [P,{shape[2]}] and {text(shape[:2])}"
        )
    rows = emit(
        "Gather", reshape(emit, cache, (1, *cache.shape)), reshape(emit, position_ids, (position_ids.spec.size,))
    )
    return reshape(emit, rows, shape)


def lower_rotaryembedding(
    emit: Emitter,
    X: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Value:
    """(x1, x2) -> (cos x1 - sin x2, sin x1 + cos x2), x1 and x2 the halves of a head or its even and odd elements

    Shapes: X [B,H,S,D] or [B,S,H*D]; caches [P,R/2] with position_ids [B,S], or [B,S,R/2]; elements after the
        first R = rotary_embedding_dim (0: all) are copied.
    Dtypes: floats, 16-bit ones computed in float32.
    Source: ONNX RotaryEmbedding-23.
    """
    same_dtype(emit, X=X, cos_cache=cos_cache, sin_cache=sin_cache)
    one_of(emit, "X", X, dt.FLOATS)
    if X.rank == 3 and num_heads and not X.shape[2] % num_heads:
        x = reshape(emit, X, (*X.shape[:2], num_heads, X.shape[2] // num_heads))
        batch, length = X.shape[:2]
    elif X.rank == 4:
        x, batch, length = X, X.shape[0], X.shape[2]
    else:
        raise ShapeError(f"{emit.source}: X is {text(X.shape)}, expected [B,H,S,D] or [B,S,H*D] with num_heads")
    size = rotary_embedding_dim or x.shape[3]
    if size % 2 or size > x.shape[3]:
        raise ShapeError(f"{emit.source}: {size} of {x.shape[3]} elements of a head cannot be rotated in pairs")
    shape = (batch, length, size // 2)
    place = (batch, 1, length, size // 2) if X.rank == 4 else (batch, length, 1, size // 2)
    cos, sin = (
        widen(emit, reshape(emit, _angles(emit, name, cache, position_ids, shape), place))
        for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache))
    )

    def part(start: int, end: int, step: int = 1) -> Value:
        found = emit(
            "DataMove", x, fn="slice", starts=(0, 0, 0, start), ends=(*x.shape[:3], end), steps=(1, 1, 1, step)
        )
        return widen(emit, found)

    x1, x2 = (part(0, size, 2), part(1, size, 2)) if interleaved else (part(0, size // 2), part(size // 2, size))
    real = elementwise(emit, "sub", elementwise(emit, "mul", cos, x1), elementwise(emit, "mul", sin, x2))
    imaginary = elementwise(emit, "add", elementwise(emit, "mul", sin, x1), elementwise(emit, "mul", cos, x2))
    if interleaved:
        pairs = [reshape(emit, v, (*v.shape, 1)) for v in (real, imaginary)]
        turned = reshape(emit, emit("DataMove", *pairs, fn="concat", axis=4), (*x.shape[:3], size))
    else:
        turned = emit("DataMove", real, imaginary, fn="concat", axis=3)
    turned = cast(emit, turned, X.dtype)
    if size < x.shape[3]:
        rest = emit("DataMove", x, fn="slice", starts=(0, 0, 0, size), ends=x.shape, steps=(1, 1, 1, 1))
        turned = emit("DataMove", turned, rest, fn="concat", axis=3)
    return reshape(emit, turned, X.shape)


ATTENTION: dict[tuple[str, str], OperatorDef] = {
    ("", "Attention"): OperatorDef(
        versioned(lower_attention, left_window_size=(25, None), right_window_size=(25, None)), since=23
    ),
    ("", "RotaryEmbedding"): OperatorDef(lower_rotaryembedding, since=23),
}
