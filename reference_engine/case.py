"""A case as one line of text that a shell, a `-k` expression and a file name can carry, and back.

    QLinearMatMul/uint8,int8/op21/A=uint8:2x3:uniform/a_scale=float32:-:0.5/.../@axis=i:1/y=uint8/ties/s17

Fields are separated by `/`: operator (`domain::Operator` outside ai.onnx), the row's label, `op` and the
opset, inputs `name=dtype:shape:content` (`!` after the name marks an initializer, `name=` an absent
input), attributes `@name=kind:value`, outputs `>`-free as `y=dtype`, the data profile, `s` and the seed.
`t` is the kind of a tensor, spelled like an input. Shape `-` is a scalar, `0x3` is empty. Content is a profile
(`normal`, `near@128@12`) or literal elements, which start with a digit or a sign: `0.5`, `1,-1`, `+inf`, `+nan`.
"""

from __future__ import annotations

import re

from .errors import CaseError
from .types import Arg, Attr, Case

_LITERAL = re.compile(r"^[-+0-9]")
_KINDS = {"i": int, "f": float, "s": str}


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "+nan"
    if value in (float("inf"), float("-inf")):
        return "+inf" if value > 0 else "-inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 and str(value) != "-0.0" else repr(value)


def _parse_number(text: str) -> float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "-"


def _arg(arg: Arg) -> str:
    if arg.absent:
        return f"{arg.name}="
    if arg.values is not None:
        content = ",".join(map(_number, arg.values)) or "+"
    else:
        content = "@".join([arg.profile, *map(_number, arg.params)])
    return f"{arg.name}{'!' if arg.const else ''}={arg.dtype}:{_shape(arg.shape)}:{content}"


def _attr(name: str, value: Attr | Arg) -> str:
    if isinstance(value, Arg):
        return f"@{name}=t:{_arg(value).partition('=')[2]}"
    many = isinstance(value, tuple)
    items = value if isinstance(value, tuple) else (value,)
    kind = next((k for k, t in _KINDS.items() if items and isinstance(items[0], t)), "i")
    text = ",".join(i if isinstance(i, str) else _number(i) for i in items)
    return f"@{name}={kind.upper() if many else kind}:{text}"


def id_of(case: Case, label: str) -> str:
    """The line that reproduces `case`; `label` is its row's dtype label."""
    op = f"{case.domain}::{case.op}" if case.domain else case.op
    parts = [op, label, f"op{case.opset}", *map(_arg, case.args), *(_attr(k, v) for k, v in case.attrs)]
    return "/".join([*parts, "y=" + ",".join(case.outputs), case.profile, f"s{case.seed}"])


def _parse_arg(field: str) -> Arg:
    name, _, rest = field.partition("=")
    if not rest:
        return Arg(name)
    const = name.endswith("!")
    name = name.removesuffix("!")
    dtype, shape_text, content = rest.split(":", 2)
    shape = () if shape_text == "-" else tuple(int(d) for d in shape_text.split("x"))
    if _LITERAL.match(content):
        values = () if content == "+" else tuple(_parse_number(v) for v in content.split(","))
        return Arg(name, dtype, shape, values=values, const=const)
    profile, *params = content.split("@")
    return Arg(name, dtype, shape, profile, tuple(_parse_number(p) for p in params), const=const)


def _parse_attr(field: str) -> tuple[str, Attr | Arg]:
    name, _, rest = field[1:].partition("=")
    kind, _, text = rest.partition(":")
    if kind == "t":
        return name, _parse_arg(f"{name}={text}")
    convert = _KINDS[kind.lower()]
    if kind.isupper():
        return name, tuple(convert(v) for v in text.split(",")) if text else ()
    return name, convert(text)


def parse_id(text: str) -> tuple[Case, str]:
    """The case that an id spells, and its label. Raises: CaseError naming the field that cannot be read."""
    fields = text.strip().split("/")
    if len(fields) < 6:
        raise CaseError(
            f"case id {text[:80]!r} has {len(fields)} fields, expected at least 6: see `opgauge list --cases`"
        )
    head, label, opset, *middle = fields
    *middle, outputs, profile, seed = middle
    domain, _, op = head.rpartition("::")
    try:
        args = tuple(_parse_arg(f) for f in middle if not f.startswith("@"))
        attrs = tuple(_parse_attr(f) for f in middle if f.startswith("@"))
        outs = tuple(outputs.removeprefix("y=").split(","))
        return Case(
            op, domain, int(opset.removeprefix("op")), args, outs, attrs, int(seed.removeprefix("s")), profile
        ), label
    except (ValueError, KeyError) as error:
        raise CaseError(f"case id {text[:200]!r} cannot be read: {error}") from error
