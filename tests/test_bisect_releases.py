"""Which releases a span holds."""

from __future__ import annotations

import subprocess

import pytest

from opgauge import bisect_releases as r
from opgauge.reference_engine.errors import CaseError

LISTED = ["1.15.0", "1.16.3", "1.20.0", "1.20.1", "1.24.4", "1.32.0", "1.32.1"]


def test_both_ends_of_a_span_are_inside_with_all_their_patches() -> None:
    assert r.within(LISTED, "1.20..1.32") == ["1.20.0", "1.20.1", "1.24.4", "1.32.0", "1.32.1"]
    assert r.within(LISTED, "1.20.1..1.24.4") == ["1.20.1", "1.24.4"]
    assert r.within(LISTED, "1..1.16") == ["1.15.0", "1.16.3"]


@pytest.mark.parametrize("text", ["1.32..1.20", "1.20", "a..b", "1.25..1.26", "..1.2"])
def test_a_span_without_two_releases_is_refused(text: str) -> None:
    with pytest.raises(CaseError):
        r.within(LISTED, text)


def test_what_has_no_wheel_for_this_python_is_said() -> None:
    assert "1.10 to before 1.15.0: no wheel" in r.missing(LISTED, "1.10..1.32")
    assert r.missing(LISTED, "1.15..1.32") == ""


def test_releases_are_listed_by_the_installer_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "thing (1.10.0)\nAvailable versions: 1.10.0, 1.9.1, 1.9.1rc1, 1.2.0.post1\n"

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-1] == "thing"
        return subprocess.CompletedProcess(command, 0, told, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert r.available("thing") == ["1.2.0.post1", "1.9.1", "1.10.0"]
    assert r.named("thing", "1.9..1.10") == (["1.9.1", "1.10.0"], "")


def test_a_list_is_taken_as_it_is_and_names_that_are_no_package_are_refused() -> None:
    assert r.named("thing", "1.0,2.0") == (["1.0", "2.0"], "")
    with pytest.raises(CaseError, match="not the name of a package"):
        r.available("--index-url=elsewhere")
    with pytest.raises(CaseError, match="neither"):
        r.named("thing", "1.0")
