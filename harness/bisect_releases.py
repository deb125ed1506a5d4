"""Which releases of a package lie in a span, and which of them have a wheel for this interpreter."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from opgauge.reference_engine.errors import CaseError

from .worker import clean

LIST_S = 120.0
_RELEASE = re.compile(r"\d+(\.\d+)*(\.?post\d+)?")


def numbers(version: str) -> tuple[int, ...]:
    """(1, 24, 4) of `1.24.4`."""
    return tuple(int(n) for n in re.findall(r"\d+", version))


def available(package: str) -> list[str]:
    """Releases that the installer finds wheels of for this interpreter, older first, no pre-releases.

    Raises: CaseError with what it said.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", package):
        raise CaseError(f"{package!r} is not the name of a package")
    command = [sys.executable, "-m", "pip", "index", "versions", "--only-binary=:all:", package]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIST_S, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaseError(f"the releases of {package} cannot be listed: {error}; name them: A,B,C") from error
    told = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if done.returncode or not told:
        why = clean(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
        raise CaseError(f"the releases of {package} cannot be listed: {why}; name them: A,B,C")
    found = {v.strip() for v in told[1].split(",")}
    return sorted((v for v in found if _RELEASE.fullmatch(v)), key=numbers)


def within(versions: Sequence[str], text: str, least: int = 2) -> list[str]:
    """Those of `LOW..HIGH`, both inside: `1.20..1.32` holds 1.20.0 and 1.32.1. Raises: CaseError."""
    low, dots, high = text.partition("..")
    if not dots or not all(re.fullmatch(r"\d+(\.\d+)*", end) for end in (low, high)):
        raise CaseError(f"{text!r} is not LOW..HIGH, as in 1.20..1.32")
    a, b = numbers(low), numbers(high)
    if a > b:
        raise CaseError(f"{text!r}: the older release comes first")
    found = [v for v in versions if _at_least(numbers(v), a) and numbers(v)[: len(b)] <= b]
    if len(found) < least:
        raise CaseError(
            f"{text!r} holds {len(found)} releases with a wheel for this Python: {', '.join(versions)[:300]}"
        )
    return found


def _at_least(version: tuple[int, ...], low: tuple[int, ...]) -> bool:
    width = max(len(version), len(low))
    return version + (0,) * (width - len(version)) >= low + (0,) * (width - len(low))


def missing(versions: Sequence[str], text: str) -> str:
    """What is said where a span begins before the first release that can be had."""
    low = text.partition("..")[0]
    if versions and numbers(versions[0])[: len(numbers(low))] > numbers(low):
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"{low} to before {versions[0]}: no wheel for Python {python}"
    return ""


def named(package: str, text: str) -> tuple[list[str], str]:
    """(releases, what is out of reach) of `LOW..HIGH`, or of a list `A,B,C` taken as it is. Raises: CaseError."""
    if ".." not in text:
        found = [v.strip() for v in text.split(",")]
        if len(found) < 2 or not all(re.fullmatch(r"[0-9A-Za-z.+!_-]+", v) for v in found):
            raise CaseError(f"{text!r} is neither LOW..HIGH nor a list A,B,C of two releases at least")
        return found, ""
    within((), text, 0)
    versions = available(package)
    return within(versions, text), missing(versions, text)
