"""From rows to cases: which rows, which cases of a row, and the smallest case that still fails."""

from __future__ import annotations

import difflib
import hashlib
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck
from hypothesis.control import BuildContext
from hypothesis.errors import Flaky, NoSuchExample, UnsatisfiedAssumption
from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.data import ChoiceTemplate, ConjectureData, StopTest

from opgauge.reference_engine.case import id_of
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import Case, CaseSpec

# Cases per round: the first 100 of a budget of 1,000 are those of a budget of 100. The first round is short, so that
# a quick look at every row does not pay for cases that it does not check.
FIRST, CHUNK = 4, 25
NEIGHBOURS = 4  # one case in so many is like the one before it
FEW = 16  # choices of fewer alternatives are attributes and flags rather than sizes
BARREN_ROUNDS = 3  # rounds without a new case before a row counts as exhausted
REFUSED_MOST = 1000  # draws of a round that assume what does not hold
UNIFORM = "opgauge-uniform"


class SelectionError(OpgaugeError):
    """A selection that names no operator or type, or cannot be read."""


class Explored(NamedTuple):
    """How many distinct cases a row gave, and whether it has no more of them."""

    distinct: int
    exhausted: bool


class UniformProvider(providers.HypothesisProvider):
    """Bounded integers uniformly, so that rows mean the probabilities they write.

    Hypothesis's own choices mix in constants found in whatever modules happen to be loaded, and repeat
    parts of earlier examples: the same seed would give other cases in another program.
    """

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **constraints: Any) -> int:
        if min_value is None or max_value is None or self._random is None:
            return super().draw_integer(min_value, max_value, **constraints)
        return self._random.randint(min_value, max_value)


DECK = 64  # choices of no more alternatives are dealt like cards


class DealtProvider(UniformProvider):
    """Each alternative of a choice once before any of them again: with the same shares, no class waits for luck.

    A choice is known by its place among the choices of a case and the number of its alternatives. `decks` outlives
    the cases of a row, so that what one round left is what the next one begins with.
    """

    decks: dict[tuple[int, int], list[int]]

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **constraints: Any) -> int:
        if min_value is None or max_value is None or self._random is None or max_value - min_value >= DECK:
            return super().draw_integer(min_value, max_value, **constraints)
        count, case = max_value - min_value + 1, self._cd
        deck = self.decks.setdefault((len(case.nodes) if case else 0, count), [])
        if not deck:
            deck.extend(range(count))
            self._random.shuffle(deck)
        return min_value + deck.pop()


Decks = dict[tuple[int, int], list[int]]


def dealing(decks: Decks | None) -> type[UniformProvider]:
    """The provider that deals from these decks; without them every choice is drawn for itself."""
    return UniformProvider if decks is None else type("Dealing", (DealtProvider,), {"decks": decks})


def stable_seed(*parts: object) -> int:
    """The same number in every process: hash() of a string is not."""
    return int.from_bytes(hashlib.sha256("|".join(map(str, parts)).encode()).digest()[:8], "little")


def draw_round(
    row: CaseSpec, seed: int, number: int, decks: Decks | None = None, neighbours: int = NEIGHBOURS
) -> list[Case]:
    """The cases of one round of a row, after the rounds that left the decks as they are: the simplest one first.

    What `hypothesis.given` would draw with this seed and this provider, at two fifths of its time: nothing is
    recorded for a replay, because the id of a case is one. But after the first round one case in `neighbours` (0: none)
    is the one before with something else: other attributes on the same shapes, other data for both. A kernel that
    caches by less than it depends on is right until then.
    """
    provider, stream = dealing(decks), random.Random(stable_seed(row.name, seed, number))
    wanted, refused, drawn = FIRST if number == 0 else CHUNK, 0, list[Case]()
    prefix: tuple[Any, ...] = (ChoiceTemplate("simplest", count=None),)
    while len(drawn) < wanted and refused < REFUSED_MOST:
        data = ConjectureData(prefix=prefix, random=stream, provider=provider)
        prefix = ()
        try:
            with BuildContext(data, is_final=False, wrapped_test=draw_round):
                drawn.append(row.draw.do_draw(data))
        except (StopTest, UnsatisfiedAssumption):
            refused += 1
            continue
        if neighbours and number and data.nodes and stream.randrange(neighbours) == 0:
            prefix = beside(data, stream)
    return drawn


def beside(data: ConjectureData, stream: random.Random) -> tuple[Any, ...]:
    """Choices for a case like the one drawn: all but one of few alternatives (an attribute), or the first ones."""
    choices: tuple[Any, ...] = data.choices
    nodes: Sequence[Any] = data.nodes
    few = [i for i, node in enumerate(nodes) if node.type == "integer" and 0 < _span(node.constraints) < FEW]
    if few and stream.randrange(3):
        at = few[stream.randrange(len(few))]
        low, span = nodes[at].constraints["min_value"], _span(nodes[at].constraints)
        other = low + (choices[at] - low + stream.randint(1, span)) % (span + 1)
        return (*choices[:at], other, *choices[at + 1 :])
    # The data and the opset are chosen last: rather more is kept than less.
    return choices[: max(stream.randrange(len(choices)), stream.randrange(len(choices)))]


def _span(constraints: Mapping[str, Any]) -> int:
    """By how much the largest integer allowed exceeds the smallest, 0 where one of them is missing."""
    low, high = constraints["min_value"], constraints["max_value"]
    return 0 if low is None or high is None else high - low


def explore(row: CaseSpec, budget: int, seed: int, visit: Callable[[str, Case], None], steer: bool = True) -> Explored:
    """Visit up to `budget` distinct cases of a row, each with its id; the same ones for the same seed.

    `steer` deals alternatives instead of drawing them, so that few cases meet more of what a row can give.
    """
    seen: set[str] = set()
    decks: Decks | None = {} if steer else None
    number = barren = 0
    while len(seen) < budget and barren < BARREN_ROUNDS:
        before = len(seen)
        for case in draw_round(row, seed, number, decks):
            text = id_of(case, row.label)
            if text not in seen and len(seen) < budget:
                seen.add(text)
                visit(text, case)
        number += 1
        barren = barren + 1 if len(seen) == before else 0
    return Explored(len(seen), len(seen) < budget)


def shrink(row: CaseSpec, seed: int, failing: Callable[[Case], bool], limit_s: float = 20.0) -> Case | None:
    """The simplest case of a row, within the time, for which `failing` holds; None when none was met."""
    providers.AVAILABLE_PROVIDERS[UNIFORM] = UniformProvider
    deadline = time.monotonic() + limit_s
    known: dict[str, bool] = {}
    best: list[Case] = []

    def fails(case: Case) -> bool:
        text = id_of(case, row.label)
        # After the deadline only remembered answers: Hypothesis replays what it found and must see it again.
        if text not in known:
            known[text] = time.monotonic() < deadline and failing(case)
            if known[text]:
                best.append(case)
        return known[text]

    settings = hypothesis.settings(
        max_examples=2000,
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=tuple(HealthCheck),
        backend=UNIFORM,
    )
    try:
        return hypothesis.find(row.draw, fails, settings=settings, random=random.Random(stable_seed(row.name, seed)))
    except NoSuchExample:
        return None
    except Flaky:  # `failing` itself changed its mind
        return best[-1] if best else None


def words_of(row: CaseSpec) -> frozenset[str]:
    """The words an expression can ask for: operator, each dtype, the whole name."""
    return frozenset((row.op, *row.label.split(","), row.name, row.label))


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...` or a list of what there is."""
    lower = {k.lower(): k for k in sorted(known)}
    close = [lower[k] for k in difflib.get_close_matches(word.lower(), lower, 3, 0.6)]
    return f"did you mean {' or '.join(close)}?" if close else "see `opgauge list`"


def require(words: Iterable[str], known: set[str], what: str) -> None:
    """Raises: SelectionError for the first word that no row has."""
    for word in words:
        if word not in known:
            raise SelectionError(f"no {what} {word!r} in the suite: {suggestion(word, known)}")


def select(
    rows: Sequence[CaseSpec], ops: Sequence[str] = (), dtypes: Sequence[str] = (), expression: str = ""
) -> tuple[CaseSpec, ...]:
    """Rows of these operators, with any of these dtypes, for which the `-k` expression holds.

    An expression joins whole words (`QLinearMatMul and int8 and not uint8`) with and, or, not and parentheses.

    Raises: SelectionError for an unknown word, with those that are near it.
    """
    require(ops, {row.op for row in rows}, "operator")
    require(dtypes, {word for row in rows for word in row.label.split(",")}, "dtype")
    wanted = parse_expression(expression, {word for row in rows for word in words_of(row)})
    return tuple(
        row
        for row in rows
        if (not ops or row.op in ops)
        and (not dtypes or set(dtypes) & set(row.label.split(",")))
        and wanted(words_of(row))
    )


Condition = Callable[[frozenset[str]], bool]


def parse_expression(text: str, known: set[str]) -> Condition:
    """or < and < not < word | (expression). Raises: SelectionError naming the place."""
    tokens = re.findall(r"[()]|[^\s()]+", text)
    if not tokens:
        return lambda words: True
    require((t for t in tokens if t not in ("(", ")", "and", "or", "not")), known, "operator or dtype")
    condition, rest = _either(tokens, text)
    if rest:
        raise SelectionError(f"expression {text!r}: {rest[0]!r} is not expected there: join words with and, or, not")
    return condition


def _either(tokens: list[str], text: str) -> tuple[Condition, list[str]]:
    left, rest = _both(tokens, text)
    if rest[:1] != ["or"]:
        return left, rest
    right, rest = _either(rest[1:], text)
    return (lambda words: left(words) or right(words)), rest


def _both(tokens: list[str], text: str) -> tuple[Condition, list[str]]:
    left, rest = _one(tokens, text)
    if rest[:1] != ["and"]:
        return left, rest
    right, rest = _both(rest[1:], text)
    return (lambda words: left(words) and right(words)), rest


def _one(tokens: list[str], text: str) -> tuple[Condition, list[str]]:
    if not tokens or tokens[0] in (")", "and", "or"):
        found = f"{tokens[0]!r}" if tokens else "the end"
        raise SelectionError(f"expression {text!r}: a word is missing before {found}")
    head, rest = tokens[0], tokens[1:]
    if head == "not":
        inner, rest = _one(rest, text)
        return (lambda words: not inner(words)), rest
    if head == "(":
        inner, rest = _either(rest, text)
        if rest[:1] != [")"]:
            raise SelectionError(f"expression {text!r}: a closing parenthesis is missing")
        return inner, rest[1:]
    return (lambda words: head in words), rest
