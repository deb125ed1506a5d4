"""The documents against the code: numbered rules, links, exit codes, statuses, commands.

Each check is a function of a root path or of texts that returns findings, and is shown a planted mistake.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
import yaml

from opgauge import cli
from opgauge.reference_engine.types import Policy, Status

ROOT = Path(__file__).resolve().parents[1]
CODE = ("reference_engine", "backends", "suites", "harness", "reports")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
NUMERICS = "docs/numerics.md"

RULE = re.compile(r"\bN([1-9]\d?)\b")
RANGE = re.compile(r"\bN([1-9]\d?) to N([1-9]\d?)\b")
HEADING = re.compile(r"^## N([1-9]\d?) \S", re.MULTILINE)
USED = re.compile(r"`([\w/]+\.py): (\w+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


# ---------------------------------------------------------------- checks


def cited(root: Path) -> dict[int, str]:
    """Rules that code cites, each with a place. `N1 to N8` cites all of them."""
    found: dict[int, str] = {}
    for room in CODE:
        for path in sorted((root / room).rglob("*.py")):
            text = path.read_text("utf-8")
            place = path.relative_to(root).as_posix()
            numbers = [int(m[1]) for m in RULE.finditer(text)]
            for m in RANGE.finditer(text):
                numbers += range(int(m[1]), int(m[2]) + 1)
            for number in numbers:
                found.setdefault(number, place)
    return found


def sections(text: str) -> dict[int, str]:
    """Each numbered rule's text."""
    heads = list(HEADING.finditer(text))
    ends = [*(h.start() for h in heads[1:]), len(text)]
    return {int(h[1]): text[h.end() : end].split("\n## ")[0] for h, end in zip(heads, ends, strict=True)}


def rule_findings(root: Path) -> list[str]:
    """Cited rules that are not written, rules without derivation, source or use, uses that do not exist."""
    rules = sections((root / NUMERICS).read_text("utf-8"))
    wrong = [f"{place} cites N{n}, which {NUMERICS} lacks" for n, place in cited(root).items() if n not in rules]
    if sorted(rules) != list(range(1, len(rules) + 1)):
        wrong.append(f"rules are numbered {sorted(rules)}")
    for number, text in rules.items():
        wrong += [
            f"N{number} has no {part!r}"
            for part in ("Statement.", "Derivation.", "Source:", "Used in:")
            if part not in text
        ]
        uses = USED.findall(text)
        if not uses:
            wrong.append(f"N{number} is used nowhere")
        wrong += [f"N{number}: {file} defines no {name}" for file, name in uses if name not in defined(root / file)]
    return wrong


def defined(path: Path) -> set[str]:
    """Names of functions, classes and assignments at the top of a module."""
    if not path.is_file():
        return set()
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return names


def documents(root: Path) -> Iterator[Path]:
    for name in DOCUMENTS:
        path = root / name
        yield from sorted(path.rglob("*.md")) if path.is_dir() else [path]


def anchors(text: str) -> set[str]:
    """The fragments that GitHub makes of headings."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


def link_findings(root: Path) -> list[str]:
    """Relative links to files or headings that do not exist."""
    wrong = []
    for path in documents(root):
        for link in LINK.findall(path.read_text("utf-8")):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, fragment = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if f"/docs/{MADE}" in target.as_posix():
                continue  # a strict build of the site holds these
            if not target.exists():
                wrong.append(f"{path.relative_to(root)}: {link} does not exist")
            elif fragment and fragment not in anchors(target.read_text("utf-8")):
                wrong.append(f"{path.relative_to(root)}: {link} names no heading")
    return wrong


def table(text: str, heading: str) -> list[list[str]]:
    """Rows of the first table under a heading, without its head."""
    part = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    return rows[2:]


def exit_code_findings(readme: str, codes: set[int]) -> list[str]:
    documented = {int(row[0]) for row in table(readme, "Exit codes")}
    missing = [f"exit code {c} is not in README.md" for c in sorted(codes - documented)]
    return missing + [
        f"README.md lists exit code {c}, which the command never gives" for c in sorted(documented - codes)
    ]


def status_findings(numerics: str, readme: str) -> list[str]:
    """Statuses that a document leaves out or invents."""
    listed = {word for row in table(numerics, "Statuses") for word in row[0].split(", ")}
    lines = re.split(r"^## Statuses$", readme, flags=re.MULTILINE)[1].split("\n## ")[0].splitlines()
    told = {word for line in lines if line.startswith("- ") for word in re.findall(r"`(\w+)`", line.partition(":")[0])}
    every = {str(s) for s in Status}
    return [
        f"{w} differs between Status and {d}"
        for d, has in ((NUMERICS, listed), ("README.md", told))
        for w in sorted(has ^ every)
    ]


# ---------------------------------------------------------------- the documents


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_every_rule_that_code_cites_is_written_and_every_rule_is_used() -> None:
    assert rule_findings(ROOT) == []


def test_relative_links_lead_somewhere() -> None:
    assert link_findings(ROOT) == []


def test_the_exit_codes_of_the_readme_are_those_of_the_command() -> None:
    assert exit_code_findings(read("README.md"), {int(code) for code in cli.Exit}) == []


def test_both_documents_list_exactly_the_statuses_that_exist() -> None:
    assert status_findings(read(NUMERICS), read("README.md")) == []


def test_the_table_of_policies_has_the_fields_and_defaults_of_the_code() -> None:
    section = sections(read(NUMERICS))[10]
    rows = {
        row[0]: row[1]
        for row in (
            [c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
        )
    }
    words = {True: "yes", False: "no"}
    default = {name: getattr(Policy(), name) for name in Policy.__dataclass_fields__}
    stated = {
        k: words[v] if isinstance(v, bool) else v[0] if isinstance(v, tuple) else str(v) for k, v in default.items()
    }

    assert {k: v for k, v in rows.items() if k not in ("field", "---")} == stated


def test_commands_that_the_readme_shows_exist() -> None:
    shown = set(re.findall(r"^ {4}opgauge (\w+)", read("README.md"), re.MULTILINE))
    names = set(command_table())

    assert shown
    assert shown <= names


# ---------------------------------------------------------------- commands


COMMENT = re.compile(r"^<!-- (run|file): (.+?) -->$")
SAYS = re.compile(r'exit (\d+)(?:, says "(.+)")?$')
PAGES = ("docs/tutorial.md", *sorted(f"docs/howto/{p.name}" for p in (ROOT / "docs" / "howto").glob("*.md")))
MADE = "reference/"  # pages that docs/reference.py makes when the site is built


class Directive(NamedTuple):
    """A comment of a page and the fenced block below it: a file to write or a command to run."""

    kind: str
    words: str
    block: str


def directives(text: str) -> list[Directive]:
    """In order. A `file: NAME = PATH` may do without a block of its own."""
    found, lines = [], text.splitlines()
    for i, line in enumerate(lines):
        if match := COMMENT.match(line):
            block: list[str] = []
            if lines[i + 1].startswith("```"):
                end = lines.index("```", i + 2)
                block = lines[i + 2 : end]
            found.append(Directive(match[1], match[2], "\n".join(block)))
    return found


def write_file(each: Directive, folder: Path) -> None:
    name, _, source = each.words.partition(" = ")
    text = (ROOT / source).read_text("utf-8") if source else each.block + "\n"
    if source and each.block:  # what is shown is what is there, less the module's docstring
        assert each.block.strip() == text.partition('"""\n')[2].strip(), f"{name} differs from {source}"
    (folder / name).write_text(text, "utf-8")


def run_block(each: Directive, folder: Path) -> str:
    """What is wrong with a marked command block, or an empty string."""
    wanted = SAYS.match(each.words)
    assert wanted, f'{each.words!r} is not `exit N` or `exit N, says "..."`'
    place = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OPGAUGE_", "PYTEST_"))}
    environment |= {"PATH": place, "OPGAUGE_JOBS": "1"}
    command = ["bash", "-eu", "-o", "pipefail", "-c", each.block]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    if done.returncode != int(wanted[1]):
        return f"{each.block}\nexits {done.returncode}, not {wanted[1]}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    missing = wanted[2] and wanted[2] not in done.stdout + done.stderr
    return f"{each.block}\ndoes not say {wanted[2]!r}:\n{done.stdout[-2000:]}" if missing else ""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_marked_command_blocks_do_what_the_page_says(page: str, tmp_path: Path) -> None:
    wrong = []
    for each in directives(read(page)):
        if each.kind == "file":
            write_file(each, tmp_path)
        else:
            wrong.append(run_block(each, tmp_path))

    assert [text for text in wrong if text] == []


def test_a_command_block_that_does_something_else_is_found(tmp_path: Path) -> None:
    page = '<!-- file: a.txt -->\n```text\nhello\n```\n<!-- run: exit 0, says "{}" -->\n```sh\ncat a.txt{}\n```\n'

    def outcome(text: str) -> str:
        file, command = directives(text)
        write_file(file, tmp_path)
        return run_block(command, tmp_path)

    assert outcome(page.format("hello", "")) == ""
    assert "does not say 'bye'" in outcome(page.format("bye", ""))
    assert "exits 1, not 0" in outcome(page.format("hello", "\nfalse"))


def command_table() -> dict[str, Any]:
    """Every command by its words: `run`, `report diff`, and `report` itself."""

    def walk(words: list[str], command: Any) -> Iterator[tuple[str, Any]]:
        if words:
            yield " ".join(words), command
        for name, inner in (getattr(command, "commands", None) or {}).items():
            yield from walk([*words, name], inner)

    return dict(walk([], typer.main.get_command(cli.app)))


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words after `opgauge`) of each command in README.md and docs/, comments and variables aside."""
    for page in ("README.md", *(p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").rglob("*.md")))):
        text = read(page)
        blocks = [
            *re.findall(r"^```sh\n(.+?)^```", text, re.MULTILINE | re.DOTALL),
            *re.findall(r"^ {4}(.+)$", text, re.MULTILINE),
        ]
        for line in re.findall(r"^(?:[A-Z_]+=\S+ )?opgauge (.+)$", "\n".join(blocks), re.MULTILINE):
            yield page, shlex.split(line.partition(" > ")[0], comments=True)  # the shell keeps what follows
        for line in re.findall(r"`opgauge ([a-z][^`\n]*)`", text):
            yield page, shlex.split(line)


def usage_finding(words: list[str]) -> str:
    """Why a command line would not be understood, or an empty string."""
    table = command_table()
    name = max((n for n in table if words[: len(n.split())] == n.split()), key=len, default="")
    if not name:
        return f"no command {' '.join(words)!r}"
    rest = words[len(name.split()) :]
    if not rest or hasattr(table[name], "commands"):
        return ""
    try:
        table[name].make_context(name, [w for w in rest if w != "..."], resilient_parsing=False)
    except Exception as error:
        return f"{' '.join(words)}: {getattr(error, 'message', error)}"
    return ""


def test_every_command_that_a_document_shows_is_understood() -> None:
    shown = list(shown_commands())

    assert len(shown) > 20
    assert [(page, why) for page, words in shown if (why := usage_finding(words))] == []
    assert "no command" in usage_finding(["runn"])
    assert "No such option" in usage_finding(["run", "--bugdet", "5"])


def reference() -> Any:
    spec = importlib.util.spec_from_file_location("opgauge_docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_hold_every_command_setting_backend_and_operator() -> None:
    from opgauge.backends import BACKENDS
    from opgauge.config import KEYS
    from opgauge.reference_engine.operators import OPERATORS

    pages = reference().pages()

    leaves = [name for name, command in command_table().items() if not hasattr(command, "commands")]
    assert [n for n in leaves if f"## opgauge {n}\n" not in pages["reference/commands.md"]] == []
    assert [k.name for k in KEYS if f"`{k.name}`" not in pages["reference/settings.md"]] == []
    assert [b for b in BACKENDS if f"`{b}`" not in pages["reference/backends.md"]] == []
    assert [op for _, op in OPERATORS if f"| {op} |" not in pages["reference/operators.md"]] == []
    assert "## assert_within_set" in pages["reference/python.md"]


def navigated(tree: Any) -> list[str]:
    if isinstance(tree, str):
        return [tree]
    return [page for each in (tree.values() if isinstance(tree, dict) else tree) for page in navigated(each)]


def test_the_site_navigates_to_every_page_and_only_to_pages() -> None:
    pages = navigated(yaml.safe_load(read("mkdocs.yml"))["nav"])
    written = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md") if "notes" not in p.parts}

    assert set(pages) == written | set(reference().HEADS)


# ---------------------------------------------------------------- planted mistakes


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The documents and a little code, for planting mistakes."""
    for name in (*DOCUMENTS, *CODE):
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    shutil.copy(ROOT / "LICENSE", tmp_path / "LICENSE")
    return tmp_path


def replaced(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text("utf-8")
    assert old in text
    (root / name).write_text(text.replace(old, new), "utf-8")


def test_a_copy_without_mistakes_has_no_finding(copy: Path) -> None:
    assert rule_findings(copy) == []
    assert link_findings(copy) == []


def test_a_rule_that_is_cited_but_not_written_is_found(copy: Path) -> None:
    (copy / "reports" / "planted.py").write_text('"""Bounds by N77."""\n')

    assert rule_findings(copy) == ["reports/planted.py cites N77, which docs/numerics.md lacks"]


def test_a_rule_that_lost_its_section_is_found(copy: Path) -> None:
    replaced(copy, NUMERICS, "## N4 ", "## Rule four ")

    assert any("cites N4" in finding for finding in rule_findings(copy))


def test_a_rule_within_a_cited_range_that_lost_its_section_is_found(copy: Path) -> None:
    for path in copy.rglob("*.py"):
        path.write_text(re.sub(r"\bN7\b", "", path.read_text("utf-8")), "utf-8")
    replaced(copy, NUMERICS, "## N7 ", "## Rule seven ")

    assert any("cites N7" in finding for finding in rule_findings(copy))


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("`reference_engine/rounding.py: accept`", "`reference_engine/rounding.py: admit`", "defines no admit"),
        ("`reference_engine/rounding.py: accept`", "`reference_engine/round.py: accept`", "round.py defines no accept"),
        ("## N10 ", "## N12 ", "rules are numbered"),
        ("Derivation. A rounding mode is monotone", "A rounding mode is monotone", "N4 has no 'Derivation.'"),
    ],
)
def test_a_rule_whose_use_number_or_derivation_is_wrong_is_found(copy: Path, old: str, new: str, finding: str) -> None:
    replaced(copy, NUMERICS, old, new)

    assert any(finding in found for found in rule_findings(copy))


@pytest.mark.parametrize(
    ("old", "new"),
    [("(docs/glossary.md)", "(docs/words.md)"), ("(docs/numerics.md#statuses)", "(docs/numerics.md#stati)")],
)
def test_a_link_that_leads_nowhere_is_found(copy: Path, old: str, new: str) -> None:
    replaced(copy, "README.md", old, new)

    assert len(link_findings(copy)) == 1


def test_an_exit_code_that_is_missing_or_invented_is_found() -> None:
    readme = read("README.md")

    assert exit_code_findings(readme.replace("| 5 |", "| 6 |"), {0, 1, 2, 3, 4, 5, 130}) == [
        "exit code 5 is not in README.md",
        "README.md lists exit code 6, which the command never gives",
    ]


def test_a_status_that_a_document_leaves_out_is_found() -> None:
    numerics, readme = read(NUMERICS), read("README.md")

    assert status_findings(numerics.replace("| leak, flaky |", "| leak |"), readme) == [
        f"flaky differs between Status and {NUMERICS}"
    ]
    assert status_findings(numerics, readme.replace("`hang`, ", "")) == ["hang differs between Status and README.md"]
