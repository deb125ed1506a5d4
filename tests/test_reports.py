"""Reports: what they show equals the records, and a stranger's text stays text."""

import base64
import hashlib
import json
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from opgauge.frames import tables
from opgauge.reference_engine.errors import OpgaugeError
from opgauge.reference_engine.types import FINDINGS, Finding, Record, Status
from opgauge.reports import html, jsonfile, junit, markdown, strips, text
from opgauge.reports.legend import MARKS, STATUSES, acceptance, clean, share
from opgauge.reports.tables import check_counts, groups, repro_line, verdict

EVIL = "<script>alert(1)</script>\"'[red]\x1b[2J\u202e|`*\n"
META = {
    "version": "0.1.0",
    "command": "opgauge run --backend cpu",
    "seed": 7,
    "exit_code": 1,
    "machine": {"cpu": "x", "cores": 2},
    "backends": {"cpu": {"version": "1", "policy": "default"}, "gone": {"version": "2"}},
}
DETAIL = {
    "index": [130, 131],
    "expected": [[127, 128], [5, 5]],
    "got": [129, 6],
    "real": [128.5, math.nan],
    "tie_distance": [0.0, np.float32(0.25)],
    "wider": "round=(even, away) accepts both",
    "positions": [130, 131],
    "shape": [2, 4, 32],
}


def record(
    status: Status, op: str = "Conv", backend: str = "cpu", seed: int = 0, label: str = "uint8", **more
) -> Record:
    case = f"{op}/{label}/op21/x=uint8:2x4x32:uniform/y=uint8/plain/s{seed}"
    fields = {"case": case, "suite": "core", "profile": "plain", "elements": 256, "set_size": 1.0} | more
    return Record(op=op, label=label, backend=backend, status=status, **fields)


def mixed() -> list[Record]:
    rows = []
    for i, status in enumerate(Status):
        for backend in ("cpu", "wgpu"):
            for op in ("Conv", "Pad", "com.microsoft::QGemm"):
                n = 1 + (i + len(op) + len(backend)) % 3
                detail = DETAIL if status is Status.FAIL else {}
                rows += [
                    record(status, op, backend, 10 * i + s, message=f"why {status}", detail=detail) for s in range(n)
                ]
    return rows


class Matrix(HTMLParser):
    """Read the counts of the matrix back from the page, dtype rows apart, and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[tuple[str, int, str]] = []
        self.tags: Counter[str] = Counter()
        self.inside = self.sub = False
        self.op, self.column = "", -1
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] += 1
        if tag == "tbody" and "data-k" in found:
            self.inside, self.op = True, found["id"].removeprefix("op=")
        elif tag == "tr":
            self.column, self.sub = -1, found.get("class") == "sub"
        elif tag == "td":
            self.column += 1

    def handle_endtag(self, tag):
        if tag == "tbody":
            self.inside = False

    def handle_data(self, data):
        if self.inside and not self.sub and self.column >= 0 and data.strip() and not data.startswith("of "):
            self.cells.append((self.op, self.column, data.strip()))


def shown_counts(page: str, backends: list[str]) -> Counter:
    """(op, backend, glyph or red word) -> count, as a reader sees them."""
    out: Counter = Counter()
    for op, column, said in Matrix(page).cells:
        glyph, count, *word = said.split()
        out[(op, backends[column], word[0] if word else glyph)] += int(count.replace(",", ""))
    return out


def expected_counts(records: list[Record]) -> Counter:
    return Counter((r.op, r.backend, str(r.status) if r.status in FINDINGS else MARKS[r.status].glyph) for r in records)


def test_the_matrix_on_the_page_equals_the_records():
    records = mixed()
    page = html.render(tables(records), records, [], META)
    assert shown_counts(page, ["cpu", "wgpu"]) == expected_counts(records)


def test_a_planted_miscount_is_seen():
    records = mixed()
    page = html.render(tables(records), records, [], META)
    assert shown_counts(page, ["cpu", "wgpu"]) != expected_counts(records[1:])
    check_counts(tables(records), records)  # control
    with pytest.raises(OpgaugeError, match="Conv on cpu shows"):
        check_counts(tables(records[1:]), records)
    wrong = tables(records)
    wrong.matrix.loc[("Pad", "wgpu"), "pass"] += 1
    for render in (html.render, jsonfile.render):
        with pytest.raises(OpgaugeError, match="Pad on wgpu shows"):
            render(wrong, records, [], META)


def test_hostile_names_stay_text_everywhere():
    records = [
        record(
            Status.FAIL, EVIL, backend=EVIL, label=EVIL, message=EVIL, case=EVIL, detail={"got": [EVIL], "wider": EVIL}
        ),
        record(Status.UNSUPPORTED, EVIL, message=EVIL),
        record(Status.DEVIATION, detail={"reason": EVIL, "link": "javascript:alert(1)"}),
    ]
    findings = [Finding(EVIL, EVIL, EVIL, "opgauge repro 'other'")]
    meta = META | {"command": EVIL, "machine": {EVIL: EVIL}, "backends": {EVIL: {"version": EVIL, EVIL: EVIL}}}
    counted = tables(records)
    page = html.render(counted, records, findings, meta)
    assert Matrix(page).tags["script"] == 1
    assert "<script>alert" not in page
    assert "javascript:" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    shown = text.summary(counted, records, findings, meta)
    assert "[red]" in shown  # not taken for markup
    assert "\x1b" not in shown
    root = ET.fromstring(junit.render(records, findings, meta))
    assert "<script>" in root.find(".//failure").get("message")
    summary = markdown.render(counted, records, findings, meta)
    assert "<script>" not in re.sub(r"```.*?```", "", summary, flags=re.S)
    assert json.loads(jsonfile.render(counted, records, findings, meta))["failures"][0]["op"] == EVIL


def test_the_policy_admits_exactly_this_style_and_script():
    records = mixed()
    page = html.render(tables(records), records, [], META)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        body = re.search(f"<{tag}>(.*?)</{tag}>", page, re.S).group(1)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
        altered = base64.b64encode(hashlib.sha256((body + " ").encode()).digest()).decode()
        assert altered not in policy
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"\son\w+=|\sstyle=", re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.S))
    assert not re.search(r'(?:src|href)="(?!#|https?://)', page)


@pytest.mark.parametrize("records", [[], [record(Status.UNSUPPORTED)], [record(Status.UNAVAILABLE)]])
def test_a_run_without_a_verdict_has_no_result_and_is_never_green(records):
    counted = tables(records)
    meta = META | {"exit_code": 0}
    page = html.render(counted, records, [], meta)
    assert '<header class="none">' in page
    assert "NO RESULT" in page
    assert "no result" in page
    assert "0 %" not in page.replace("100 %", "")
    assert "opgauge: NO RESULT: nothing ran" in text.summary(counted, records, [], meta)
    assert "NO RESULT" in markdown.render(counted, records, [], meta)
    assert ET.fromstring(junit.render(records, [], meta)).get("errors") == "1"
    assert json.loads(jsonfile.render(counted, records, [], meta))["verdict"]["word"] == "NO RESULT"


def test_the_verdict_follows_records_findings_and_exit_code():
    good = [record(Status.PASS, explained="exact")]
    stale = Finding("stale-deviation", "Pad", "witness passes")
    assert verdict(tables(good), [], 0).word == "PASS"
    assert verdict(tables(good), [stale], 1).word == "FAIL"
    assert verdict(tables(good), [], 4).word == "FAIL"
    assert verdict(tables([*good, record(Status.HANG)]), []).word == "FAIL"
    assert verdict(tables([record(Status.UNTRUSTED)]), [], 0).word == "NO RESULT"
    assert verdict(tables([record(Status.CRASH)]), [], 1).word == "FAIL"
    beside = replace(record(Status.FAIL), backend="onnx-reference==1.21.0")
    assert verdict(tables([*good, beside]), [], 0)[::2] == (
        "PASS",
        "1 of 2 cases pass, 1 operators on 2 backends; for information only: 1 fail",
    )
    assert verdict(tables([beside]), [], 1).word == "FAIL"
    assert text.verdict_line(tables(good), [], 0).startswith(
        "opgauge: PASS: 1 of 1 cases pass, 1 operators on 1 backend"
    )


def test_a_failure_shows_its_evidence():
    records = [record(Status.FAIL, message="one quantum off", detail=DETAIL, outside=2)]
    counted = tables(records)
    page = html.render(counted, records, [], META)
    shown = text.summary(counted, records, [], META)
    for said in ("one quantum off", "127 … 128", "128.5", "round=(even, away) accepts both", "130 = 1,0,2"):
        assert said in page
        assert said in shown
    assert "opgauge repro &#39;Conv/uint8/op21" in page
    assert repro_line(records[0]) in shown
    assert '<svg class="heat"' in page
    assert 'href="#red=Conv=cpu"' in page
    assert 'id="red=Conv=cpu"' in page
    assert 'id="op=Conv"' in page


def test_every_fragment_link_has_its_target():
    records = mixed()
    page = html.render(tables(records), records, [], META)
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(ids)


def test_the_filter_finds_operators_by_name_status_and_dtype():
    records = [record(Status.FAIL), record(Status.PASS, "Pad", label="int8")]
    page = html.render(tables(records), records, [], META)
    assert re.findall('data-k="([^"]*)"', page) == ["conv fail uint8", "pad pass int8"]


def test_heat_shows_stripes_where_the_last_columns_are_outside():
    picture = html.heat([31, 63, 95], [3, 32])
    assert picture["paths"] == {3: "M31 0h1v1h-1zM31 1h1v1h-1zM31 2h1v1h-1z"}
    assert html.heat(range(96), [3, 32])["paths"] == {3: "M0 0h32v1h-32zM0 1h32v1h-32zM0 2h32v1h-32z"}
    assert html.heat([5], [1000, 1000])["paths"] == {1: "M0 0h1v1h-1z"}
    assert html.heat([], [3]) is None
    assert html.heat(None, None) is None
    assert html.heat([99], [3]) is None


def test_reasons_are_gathered_although_their_numbers_differ_but_dtypes_stay_apart():
    records = [record(Status.FAIL, message=f"{i} of 9 outside", seed=i) for i in (3, 4)]
    assert [g.cases for g in groups(records, FINDINGS)] == [2]
    refused = [
        record(Status.UNSUPPORTED, op, message=f"{op}: no {t}") for op in ("Conv", "Pad") for t in ("int8", "int16")
    ]
    found = groups(refused, (Status.UNSUPPORTED,), apart=False)
    assert [(g.ops, g.message) for g in found] == [(("Conv", "Pad"), "…: no int16"), (("Conv", "Pad"), "…: no int8")]


def test_the_page_stays_small_for_a_hundred_failing_operators_on_three_backends():
    labels = ("uint8,int8", "uint8,uint8", "int8,int8", "float32", "float16", "int32")
    detail = DETAIL | {"positions": list(range(0, 4096, 3)), "shape": [16, 256]}
    records = [
        record(
            status,
            f"com.microsoft::QLinearOperator{op}",
            backend,
            s,
            label,
            message="m" * 200,
            detail=detail,
            case=f"{op}{label}{s}" + "x=uint8:2x3x4x5:uniform/" * 20,
        )
        for op in range(100)
        for backend in ("cpu", "wgpu", "onnxruntime")
        for label in labels
        for s, status in enumerate((Status.FAIL, Status.PASS, Status.UNTRUSTED))
    ]
    page = html.render(tables(records), records, [], META)
    assert len(page.encode()) <= html.LIMIT_BYTES
    assert shown_counts(page, ["cpu", "onnxruntime", "wgpu"]) == expected_counts(records)


def test_junit_parses_and_its_counts_agree():
    records = mixed()
    findings = [Finding("stale-deviation", "Pad", "witness passes"), Finding("fail", "Conv", "x", records[0].case)]
    root = ET.fromstring(junit.render(records, findings, META))
    count = Counter(r.status for r in records)
    assert int(root.get("tests")) == len(records) + 1
    assert int(root.get("failures")) == count[Status.FAIL] + 1
    assert int(root.get("errors")) == sum(count[s] for s in FINDINGS) - count[Status.FAIL]
    assert len(root.findall(".//skipped")) == sum(count[s] for s in junit.SKIPPED) == int(root.get("skipped"))
    for suite in root:
        assert int(suite.get("tests")) == len(suite.findall("testcase"))
    assert {s.get("name") for s in root} >= {"cpu/Conv", "wgpu/Pad", "opgauge/findings"}


def test_a_large_run_is_aggregated_in_junit_without_losing_a_case(monkeypatch):
    records = mixed()
    monkeypatch.setattr(junit, "CASES", 10)
    monkeypatch.setattr(junit, "RED_PER_ROW", 1)
    root = ET.fromstring(junit.render(records, [], META))
    assert int(root.get("tests")) < len(records)
    total = 0
    for name in (case.get("name") for case in root.iter("testcase")):
        many = re.search(r": (\d+) \w+\[", name)
        total += int(many.group(1)) if many else 1
    assert total == len(records)
    assert sum(int(p.get("value")) for p in root.iter("property")) == len(records)


def test_json_holds_no_nan_and_all_failures():
    records = [
        *mixed(),
        record(Status.FAIL, set_size=math.nan, detail={"got": [math.inf, np.float32("nan"), "\ud800"]}),
    ]
    said = jsonfile.render(tables(records), records, [], META | {"seconds": math.nan}, everything=True)

    def refuse(word: str):
        raise AssertionError(word)

    body = json.loads(said.encode(), parse_constant=refuse)
    assert body["schema"] == "opgauge.report/1"
    assert len(body["records"]) == len(records) == body["totals"]["cases"]
    assert len(body["failures"]) == sum(r.status in FINDINGS for r in records)
    assert body["failures"][-1]["detail"]["got"] == ["inf", "nan", "?"]
    assert sum(row["cases"] for row in body["matrix"]) == len(records)


def test_markdown_is_cut_at_a_line_below_the_limit():
    lines = ["é" * 99] * 100
    short = markdown.cut(lines, 5000)
    assert len(short.encode()) <= 5000
    assert "cut here" in short
    assert all(line in ("", "é" * 99) or "cut" in line for line in short.split("\n"))
    assert markdown.cut(lines, 10**6) == "\n".join(lines)


def test_markdown_shows_ten_findings_and_never_only_red_cases():
    records = [record(Status.FAIL, seed=i, message="off") for i in range(30)]
    said = markdown.render(tables(records), records, [Finding("stale-deviation", "Pad", "passes")], META)
    assert said.count("```\n") == 18
    assert "stale\\-deviation" in said
    assert "(10 of 31)" in said


def test_numbers_never_round_something_to_nothing():
    assert share(1, 10**6) == "<0.01 %"
    assert share(10**6 - 1, 10**6) == ">99.99 %"
    assert share(0, 0) == "no result"
    assert (acceptance([1, 2]), acceptance([3, 3]), acceptance([1, 2, 5])) == ("1 … 2", "3", "{1, 2, 5}")
    assert clean("x" * 300, 10) == "x" * 9 + "…"
    assert len(STATUSES) == len(Status)


def test_columns_that_do_not_fit_on_a_phone_head_every_cell_themselves():
    few = html.matrix_style(["cpu", "exact", "onnx-stored", "wgpu"])
    many = html.matrix_style([f"onnxruntime==1.2{i}.0" for i in range(6)])

    assert few == ":root{--backends:4}\n"
    assert many.count("content:") == 6
    assert 'nth-child(7):before{content:"onnxruntime' in many
    hostile = html.matrix_style(['"}</style><script>\\', *"abcdefgh", "onnxruntime"])
    assert "<" not in hostile
    assert "script" in hostile
    assert hostile.count('"') == 20


@pytest.mark.parametrize(
    ("name", "version", "shown"),
    [
        ("openvino==2025.4.1", "2025.4.1-20426-82bbf-releases/2025/4", ""),
        ("onnxruntime==1.2", "1.2", ""),
        ("onnxruntime==1.2:level=basic", "1.2", ""),
        ("onnxruntime==1.2", "1.24", "1.24"),
        ("onnxruntime", "1.32.0", "1.32.0"),
    ],
)
def test_a_version_is_shown_where_the_name_does_not_say_it(name: str, version: str, shown: str):
    assert html._version(name, {"version": version}) == shown


def test_the_ends_of_a_model_have_few_digits():
    output = {"name": "probs", "sqnr_db": 143.27, "top1": 1.0, "largest_difference": 1.1920928955078125e-07}

    assert strips._end(output) == "probs: 143.3 dB, same first choice in 100 %, largest difference 1.2e-07"
    assert strips._end({"name": "y", "sqnr_db": None, "largest_difference": 0.0}) == "y: largest difference 0"
