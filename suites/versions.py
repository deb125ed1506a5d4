"""The versions of an operator that can spell a case."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.lower import MAX_OPSET
from opgauge.reference_engine.types import Arg, Case

LEAST = 7  # runtimes take no older models
# From these on, what is spelled alike is no longer legal: a Split by nothing, scale and bias for each group.
BROKEN = {"Split": 18, "GroupNormalization": 21}
REGIONS = (19, 21, 22, 23)  # of several operators: where quantization and pools have other versions


@lru_cache(maxsize=1)
def _histories() -> dict[str, tuple[Any, ...]]:
    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, []).append(schema)
    return {name: tuple(sorted(rows, key=lambda s: s.since_version)) for name, rows in found.items()}


def opsets(case: Case) -> list[int]:
    """The opsets to try beside the case's own: the first of each version of the operator that can spell it."""
    if case.domain:
        return []
    rows = _histories().get(case.op, ())
    own = max((s.since_version for s in rows if s.since_version <= case.opset), default=0)
    newest = min(onnx.defs.onnx_opset_version(), MAX_OPSET)
    found = []
    for schema in rows:
        opset = max(schema.since_version, LEAST)
        low, high = sorted((case.opset, opset))
        if low < BROKEN.get(case.op, 0) <= high:
            continue
        following = min((s.since_version for s in rows if s.since_version > schema.since_version), default=newest + 1)
        if schema.since_version != own and opset < following and opset <= newest and _spells(schema, case):
            found.append(opset)
    return found


def later(case: Case) -> list[int]:
    """The opsets above the case's own that it may be drawn at, too; of another domain, those of the model around it."""
    return [opset for opset in (REGIONS if case.domain else opsets(case)) if opset > case.opset]


def _spells(schema: Any, case: Case) -> bool:
    """Is the case, as it is written, legal for this version: its inputs, their types, its attributes."""
    if schema.deprecated or not schema.min_input <= len(case.args) <= schema.max_input:
        return False
    if len(case.outputs) > schema.max_output or any(name not in schema.attributes for name, _ in case.attrs):
        return False
    if any(a.required and name not in dict(case.attrs) for name, a in schema.attributes.items()):
        return False
    return all(_takes(schema, i, arg) for i, arg in enumerate(case.args))


def _takes(schema: Any, index: int, arg: Arg) -> bool:
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    if arg.absent:
        return formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional
    word = onnx.TensorProto.DataType.Name(dt.ONNX[arg.dtype]).lower()  # `float`, `double`: ONNX's own
    return f"tensor({word})" in formal.types
