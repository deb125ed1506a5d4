"""The fingerprint of a backend as a card: text for terminals, Markdown for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .legend import clean

SHOWN = 4
HEADS = ("trait", "property", "answer", "evidence")


def answer(row: Mapping[str, Any]) -> str:
    """What is known in words."""
    found = [str(word) for word in row["found"]]
    match row["status"]:
        case "known":
            return found[0]
        case "several":
            more = f" or {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            return " or ".join(found[:SHOWN]) + more
        case "open":
            return f"not told apart: {' or '.join(found[:SHOWN])}"
        case "none":
            return f"none of the known: {clean(row['message'], 160)}"
        case status:
            return f"{status}: {clean(row['message'], 100)}"


def evidence(row: Mapping[str, Any]) -> str:
    """How much had to be explained, and by how many elements the best of the others failed."""
    if not row["elements"]:
        return ""
    text = f"{row['elements']:,} elements"
    text += f", the next fails on {row['against']:,}" if row["against"] else ""
    return text + (f", {row['refused']} cases refused" if row["refused"] else "")


def lines(answers: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """A row for each answer; the name of a trait only where it changes; what has one reason in one row."""
    found: list[tuple[str, str, str, str]] = []
    before = ""
    for row in answers:
        whole = row["status"] in ("none", "unsupported", "failed")
        if whole and row["trait"] == before:
            continue
        axes = ", ".join(a["axis"] for a in answers if a["trait"] == row["trait"] and a["message"] == row["message"])
        name = row["trait"] if row["trait"] != before else ""
        found.append((name, axes if whole else row["axis"], answer(row), evidence(row)))
        before = row["trait"]
    return found


def properties(answers: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    """(trait, property, answer) of each property; a whole trait that is refused is one."""
    found: dict[tuple[str, str], str] = {}
    for row in answers:
        whole = row["status"] in ("unsupported", "failed")
        found.setdefault((row["trait"], "" if whole else row["axis"]), row["status"] if whole else answer(row))
    return tuple((*key, said) for key, said in found.items())


def alike(rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """(traits, what is known of them): one row for all that answer every question in the same way."""
    said: dict[str, list[str]] = {}
    for trait, axis, word in rows:
        said.setdefault(trait, []).append(f"{axis}: {word}" if axis else word)
    traits: dict[str, list[str]] = {}
    for trait, words in said.items():
        traits.setdefault("; ".join(words), []).append(trait)
    return [(", ".join(names), words) for words, names in traits.items()]


def apart(cards: Mapping[str, Sequence[tuple[str, str, str]]]) -> list[tuple[str, str, list[str]]]:
    """(trait, property, answers in the order of the backends) where at least two of them answer differently."""
    by_name = {name: {row[:2]: row[2] for row in rows} for name, rows in cards.items()}
    keys = dict.fromkeys(key for rows in by_name.values() for key in rows)
    found = []
    for key in keys:
        words = [rows.get(key, "") for rows in by_name.values()]
        if len({w for w in words if w}) > 1:
            found.append((*key, words))
    return found


def title(card: Mapping[str, Any]) -> str:
    version = card["info"].get("version", "")
    return f"fingerprint of {clean(card['backend'])}{f' ({clean(version)})' if version else ''}"


def text(card: Mapping[str, Any]) -> str:
    rows = lines(card["answers"])
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    body = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" + (f"  [{row[3]}]" if row[3] else "") for row in rows
    ]
    return "\n".join([title(card), *(line.rstrip() for line in body)]) + "\n"


def markdown(card: Mapping[str, Any]) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    body = [row([cell if i != 2 else f"`{cell}`" for i, cell in enumerate(each)]) for each in lines(card["answers"])]
    return "\n".join([f"# {title(card)}", "", row(HEADS), row(["---"] * len(HEADS)), *body]) + "\n"
