"""The page in a real browser: headless Chromium over its debugging pipe. Without one the tests say what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opgauge.frames import tables
from opgauge.reference_engine.types import Record, Status
from opgauge.reports import html, site
from opgauge.reports.diff import compare
from opgauge.reports.extras import Extras, Moves, Trend
from opgauge.reports.site import Column

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), "")
REASON = f"no Chromium: install one of {', '.join(NAMES)}, or name it in the variable CHROMIUM"
ANSWER_S = 60.0


class Browser:
    """One headless Chromium with one page; `events` is everything that it told."""

    def __init__(self, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def pipes() -> None:  # the browser reads at 3 and writes at 4
            high_read, high_write = os.dup(to_read), os.dup(to_write)
            os.dup2(high_read, 3)
            os.dup2(high_write, 4)

        words = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        words += [f"--user-data-dir={profile}", "--disable-background-networking", "--disable-dev-shm-usage"]
        self._process = subprocess.Popen(
            [PROGRAM, *words, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=pipes,
            close_fds=False,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self.events, self._session = 0, b"", list[dict[str, Any]](), ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.events.append(answer)
        raise AssertionError(f"{method}: no answer within {ANSWER_S:.0f} s")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], ANSWER_S)
            part = os.read(self._from, 1 << 16) if ready else b""
            assert part, "the browser has gone, or does not answer"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def open(self, url: str) -> None:
        """Go there and wait for the page's load event."""
        self.send("Page.navigate", url="about:blank")  # or a fragment of the same page would load nothing
        self.events.clear()
        self.send("Page.navigate", url=url)
        self._arrive(url)

    def follow(self, link: str) -> None:
        """Click on what this selector finds and wait for that page: one that is being left answers badly."""
        url = self.see(f"document.querySelector('{link}').href")
        self.events.clear()
        self.see(f"document.querySelector('{link}').click()")
        self._arrive(url)

    def _arrive(self, url: str) -> None:
        deadline = time.monotonic() + ANSWER_S
        while not self._loaded(url):
            assert time.monotonic() < deadline, f"{url} does not load"
            self.events.append(self._receive())

    def _loaded(self, url: str) -> bool:
        """The load event after the frame went to `url`: that of the blank page may come late."""
        gone = [i for i, e in enumerate(self.events) if e.get("method") == "Page.frameNavigated"]
        gone = [i for i in gone if self.events[i]["params"]["frame"]["url"] == url.partition("#")[0]]
        return bool(gone) and any(e.get("method") == "Page.loadEventFired" for e in self.events[gone[0] :])

    def see(self, expression: str) -> Any:
        """The value of an expression on the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def size(self, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, uncaught exceptions, what the policy blocked."""
        found = []
        for event in self.events:
            told = event.get("params", {})
            if event.get("method") == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(told["exceptionDetails"]["text"])
            if event.get("method") == "Runtime.consoleAPICalled":
                found.append(str(told["args"]))
        return found

    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.send("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not PROGRAM:
        pytest.skip(REASON)
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


# ---------------------------------------------------------------- a page with everything on it


def case(op: str, k: int, seed: int) -> str:
    return f"{op}/float32/op13/A=float32:4x{k}:normal/B=float32:{k}x9:normal/y=float32/plain/s{seed}"


def record(op: str, status: Status, seed: int, k: int = 16, backend: str = "cpu", **more: Any) -> Record:
    return Record(case(op, k, seed), "core", op, "float32", "plain", backend, status, **{"elements": 36, **more})


SPREAD = {
    "unit": "ULP",
    "histogram": [[-1, 3, 0], [0, 30, 0], [4, 0, 3]],
    "points": [[1.0, 8.0, 1], [2.0, 0.0, 0], [0.5, -1.0, 0]],
}
DETAIL = {
    "index": [8, 17],
    "expected": ["1", "2"],
    "got": ["1.5", "2.5"],
    "positions": [8, 17, 26],
    "shape": [4, 9],
    "spread": SPREAD,
    "wider": "no rounding policy accepts it",
}


def records() -> list[Record]:
    found = [record("MatMul", Status.FAIL, s, 5 + 8 * s, detail=DETAIL, outside=3, message="off") for s in range(6)]
    found += [record("MatMul", Status.PASS, s, 8 + 8 * s, explained="exact") for s in range(6)]
    found += [
        record(op, Status.PASS, s, backend=b, explained="within")
        for op in ("Conv", "Pad")
        for b in ("cpu", "wgpu")
        for s in range(3)
    ]
    found += [
        record("Relu", Status.UNSUPPORTED, 1, message="not here"),
        record("Exp", Status.DEVIATION, 1, message="known"),
    ]
    nodes = [
        ("0000 Conv_0", "Conv", Status.PASS),
        ("0001 Relu_1", "Relu", Status.FAIL),
        ("0002 Add_2", "Add", Status.PASS),
    ]
    found += [Record(f"model/net/{w}", "model", op, "", "", "cpu", s, "off", elements=4) for w, op, s in nodes]
    return found


META = {"exit_code": 1, "version": "1", "command": "opgauge run", "backends": {"cpu": {"version": "1"}}}
DEAD = """[...document.querySelectorAll('a[href^="#"]')]
  .filter((a) => !document.getElementById(decodeURIComponent(a.hash.slice(1)))).length"""


def page(tmp_path: Path) -> Path:
    now = records()
    before = [replace(r, status=Status.PASS) if r.op == "MatMul" else r for r in now[:-3]]
    more = Extras(
        compare(before, now, ("yesterday", "today")),
        (Moves("net", ("as written", "after rules"), (("Transpose", "4", "1"), ("Copy", "1", "0")), "counts"),),
        (
            Trend(
                "MatMul cpu / onnxruntime",
                ((1.0, 0.9, 1.1), (1.01, 0.9, 1.1), (1.6, 1.5, 1.7)),
                ("a", "b", "c"),
                ((2, "c1", ""),),
            ),
        ),
        {
            "cpu": (("MatMul", "order of sums", "sequential"), ("Cast", "NaN", "to the least")),
            "wgpu": (("MatMul", "order of sums", "in lanes"), ("Cast", "NaN", "to the least")),
        },
    )
    path = tmp_path / "report.html"
    path.write_text(html.render(tables(now), now, [], META, more), "utf-8")
    return path


SIZES = [(390, False), (390, True), (1400, False), (1400, True)]


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_the_page_fits_says_nothing_in_the_console_and_loads_nothing(
    browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    path = page(tmp_path)
    browser.size(width, dark=dark)
    browser.open(path.as_uri())

    assert browser.complaints() == []
    assert [url for url in browser.requests() if url != path.as_uri()] == []
    assert browser.see("document.documentElement.scrollWidth - innerWidth") <= 0
    background = browser.see("getComputedStyle(document.body).backgroundColor")
    assert (background != "rgb(255, 255, 255)") is dark
    for name in ("change", "red", "matrix", "evidence", "shapes", "models", "latency", "numerics", "run"):
        assert browser.see(f"document.getElementById('{name}').getBoundingClientRect().height") > 20, name
    assert browser.see("document.querySelectorAll('.bars, .cloud, .heat, .residues, .strip, .trend').length") >= 8


def test_a_script_that_is_not_ours_is_blocked_and_noticed(browser: Browser, tmp_path: Path) -> None:
    path = page(tmp_path)
    path.write_text(path.read_text("utf-8").replace("</main>", "<script>document.title = 'x'</script></main>"), "utf-8")
    browser.open(path.as_uri())

    assert browser.see("document.title") != "x"
    assert any("Content Security Policy" in said for said in browser.complaints())


def test_the_filter_hides_rows_and_counts_those_that_are_left(browser: Browser, tmp_path: Path) -> None:
    browser.size(1400)
    browser.open(page(tmp_path).as_uri())
    shown = "[...document.querySelectorAll('tbody[data-k]')].filter((row) => row.offsetHeight).length"
    every = browser.see(shown)
    browser.see("document.getElementById('filter').focus()")
    browser.send("Input.insertText", text="matmul fail")

    assert browser.see(shown) == 1 < every
    assert browser.see("document.getElementById('shown').textContent") == f"1 of {every}"


def test_links_lead_to_their_places_and_open_what_is_folded(browser: Browser, tmp_path: Path) -> None:
    path = page(tmp_path)
    browser.size(1400)
    browser.open(path.as_uri())
    assert browser.see(DEAD) == 0
    browser.see("document.querySelector('.matrix a[href^=\"#red=\"]').click()")
    assert browser.see("location.hash") == "#red=MatMul=cpu"

    browser.open(path.as_uri() + "#op=MatMul")
    folded = "document.getElementById('op=MatMul').querySelector('details').open"
    place = "document.getElementById('op=MatMul').getBoundingClientRect().top"
    assert browser.see(folded) is True
    assert 0 <= browser.see(place) < 900


def test_print_shows_the_matrix_without_the_filter(browser: Browser, tmp_path: Path) -> None:
    browser.size(800, media="print")
    browser.open(page(tmp_path).as_uri())

    assert browser.see("document.querySelector('.filter').offsetHeight") == 0
    assert browser.see("document.querySelector('.matrix').offsetHeight") > 50
    browser.size(1400)


def test_the_pages_of_a_site_work_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    old = tuple(replace(r, status=Status.PASS, backend="rt==1.0") for r in records()[:-3])
    new = tuple(replace(r, backend="rt==2.0") for r in records()[:-3])
    columns = [Column("rt", "", v, f"rt=={v}", "run", "", "", rows) for v, rows in (("1.0", old), ("2.0", new))]
    for name, text in site.pages(columns, [], "Sites", {}).items():
        (tmp_path / name).write_text(text, "utf-8")
    browser.size(390)
    browser.open((tmp_path / "index.html").as_uri())
    assert browser.complaints() == []
    assert "MatMul" in browser.see("document.body.innerText")
    browser.follow("table.list a")
    assert browser.see("document.querySelector('h1').textContent") == "rt"
    assert "broke" in browser.see("document.body.innerText")
    assert browser.see("document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.complaints() == []
