"""What other packages add to the tables: loaded where it is read, judged like our own, named when it is broken."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from opgauge import cli, suites
from opgauge.backends import cpu
from opgauge.reference_engine import extensions, operators, primitives
from opgauge.reference_engine.errors import DtypeError, ModelError, ShapeError, UnknownOperatorError
from opgauge.reference_engine.executor import finder, with_added
from opgauge.reference_engine.extensions import ExtensionError
from opgauge.reference_engine.lower import lower
from opgauge.reference_engine.types import Array, Kernel

EXAMPLES = Path(__file__).parent.parent / "examples"
GROUPS = ("operators", "primitives", "kernels.cpu", "kernels.wgpu", "suites")

Install = Callable[..., None]


def forget() -> None:
    for function in (extensions.extensions, operators.table, primitives._added):
        function.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution `NAME 1.0` whose module NAME has this source and offers VALUE to a group."""

    def one(name: str, group: str, source: str, value: str = "ROWS") -> None:
        (tmp_path / f"{name}.py").write_text(source)
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[opgauge.{group}]\n{name} = {name}:{value}\n")
        forget()

    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield one
    forget()
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def read(group: str) -> object:
    """Read the table of a group, as the rest of opgauge does."""
    if group == "operators":
        return operators.table()
    if group == "primitives":
        return primitives.primitive_of("no such primitive")
    if group == "suites":
        return suites.cases()
    return with_added(cpu.kernels(), group.removeprefix("kernels."))


BROKEN = {
    "does not import": ("import no_such_module_at_all\nROWS = ()", "ModuleNotFoundError: .*no_such_module_at_all"),
    "raises": ("raise ValueError('born broken')", "ValueError: born broken"),
    "lacks its rows": ("", "ROWS"),
    "offers something else": ("ROWS = 7", "is int, expected a "),
    "offers something else inside": ("ROWS = {'a': 1} if MAPPING else (1,)", "is int, expected "),
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_extension_is_a_typed_error_that_names_its_distribution(install: Install, group: str, how: str):
    source, said = BROKEN[how]
    install("faulty", group, f"MAPPING = {group in ('operators', 'primitives')}\n{source}")
    with pytest.raises(ExtensionError, match=rf"^faulty 1\.0: entry point 'faulty' of opgauge\.{group} .*{said}"):
        read(group)


CLASHES = {
    "operators": "from opgauge.reference_engine.operators import OPERATORS as ROWS",
    "primitives": "from opgauge.reference_engine.primitives import PRIMITIVES as ROWS",
    "kernels.cpu": "from opgauge.backends.cpu.reduce import KERNELS as ROWS",
    "suites": "from opgauge.suites.reduce import CASES as ROWS",
}


@pytest.mark.parametrize("group", CLASHES)
def test_no_extension_takes_the_place_of_a_row(install: Install, group: str):
    install("greedy", group, CLASHES[group])
    with pytest.raises(ExtensionError, match=r"^greedy 1\.0: .* there is a row for .* already"):
        read(group)


def test_two_extensions_cannot_offer_the_same_row(install: Install):
    kernel = "from opgauge.reference_engine.types import Kernel\nROWS = (Kernel('other.P', '', ('int8',), print),)"
    install("first", "kernels.cpu", kernel)
    assert Kernel("other.P", "", ("int8",), print) in with_added((), "cpu")  # control
    assert with_added((), "wgpu") == ()
    install("second", "kernels.cpu", kernel)
    with pytest.raises(ExtensionError, match=r"^second 1\.0: .*\('other.P', '', \('int8',\)\) already"):
        with_added((), "cpu")


def test_a_broken_extension_harms_nothing_that_does_not_read_its_table(install: Install):
    install("faulty", "operators", "raise ValueError")
    model = one_node("Relu", "", {"x": np.ones(3, np.float32)})
    assert lower(model, {"x": np.ones(3, np.float32)}).nodes
    with pytest.raises(ExtensionError, match="faulty"):
        lower(one_node("Other", "example", {"x": np.ones(3, np.float32)}), {"x": np.ones(3, np.float32)})


def one_node(op: str, domain: str, inputs: dict[str, Array], **attrs: object) -> bytes:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    node = helper.make_node(op, list(inputs), ["y"], domain=domain, **attrs)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 13), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


SCALE = """
from opgauge.reference_engine.emit import Emitter, OperatorDef, Value, elementwise, scalar


def lower_scale(emit: Emitter, x: Value, *, by: float) -> Value:
    return elementwise(emit, "mul", x, scalar(emit, by, x.dtype))


ROWS = {("example", "Scale"): OperatorDef(lower_scale, domain="example")}
"""


@pytest.mark.parametrize("source", [SCALE, "from __future__ import annotations\n" + SCALE])
def test_an_operator_from_outside_is_checked_like_ours(install: Install, source: str):
    install("scaling", "operators", source)
    x = np.float32([1, 2])
    graph = lower(one_node("Scale", "example", {"x": x}, by=0.5), {"x": x})
    assert graph.specs[graph.outputs[0]].shape == (2,)
    with pytest.raises(ModelError, match="required attribute by is missing"):
        lower(one_node("Scale", "example", {"x": x}), {"x": x})
    with pytest.raises(ModelError, match="attribute by is 2, expected float"):
        lower(one_node("Scale", "example", {"x": x}, by=2), {"x": x})
    with pytest.raises(UnknownOperatorError, match="no lowering"):
        lower(one_node("Scale", "other", {"x": x}), {"x": x})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both examples, installed by pip from copies outside the tree."""
    folder = tmp_path_factory.mktemp("examples")
    sources = [shutil.copytree(EXAMPLES / name, folder / name) for name in ("weighted_sum", "raw12")]
    target = folder / "site"
    words = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target), *map(str, sources)]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def opgauge(site: Path, tmp_path: Path, *words: str) -> tuple[int, str]:
    """Exit code and output of a command in a process that sees the examples."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-P", "-m", "opgauge", *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stdout + done.stderr


def has_adapter() -> bool:
    try:
        from opgauge.backends.wgpu import dispatch

        return bool(dispatch.adapters())
    except Exception:
        return False


def test_the_examples_are_run_and_judged_on_every_device(site: Path, tmp_path: Path):
    words = ["run", "--op", "WeightedSum", "--op", "DequantizeRaw12", "--budget", "12", "--jobs", "1"]
    more = ["--backend", "wgpu"] if has_adapter() else []
    code, text = opgauge(site, tmp_path, *words, "--backend", "cpu", "--backend", "raw12", *more)
    assert code == 0, text
    devices = 2 if more else 1
    # raw12 runs its own operator and refuses the other one.
    assert f"({24 * devices + 12} pass, 12 unsupported)" in text


def test_planted_faults_of_an_example_are_seen_and_honest_variants_are_not(site: Path, tmp_path: Path):
    faults = str(EXAMPLES / "weighted_sum" / "faults.py")
    code, text = opgauge(site, tmp_path, "sensitivity", "--faults", faults, "--cases", "30")
    assert code == 0, text
    assert "4 of 4 faults seen, 0 of 2 honest variants flagged" in text


@pytest.fixture
def examples(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(site)
    forget()
    yield
    forget()
    for name in [n for n in sys.modules if n.partition(".")[0] in ("raw12", "weighted_sum")]:
        del sys.modules[name]


def test_the_examples_are_listed_with_their_rows(examples: None, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        cli.main(["list", "--operators"])
    assert not stop.value.code
    listed = capsys.readouterr().out
    for op in ("WeightedSum", "DequantizeRaw12"):
        assert f"{op}\texample\t1" in listed


def test_shapes_and_element_types_of_an_example_are_inferred(examples: None):
    f = np.float32
    feeds = {"x1": np.ones((3, 1), f), "x2": np.ones((2, 1, 4), f), "w": np.ones(2, f)}
    graph = lower(one_node("WeightedSum", "example", feeds), feeds)
    assert str(graph.specs[graph.outputs[0]]) == "float32[2x3x4]"
    for wrong, error in (({"w": np.ones(3, f)}, ShapeError), ({"x2": np.ones(4, np.int32)}, DtypeError)):
        bad = {**feeds, **wrong}
        with pytest.raises(error):
            lower(one_node("WeightedSum", "example", bad), bad)


def raw12_inputs(packed: Array) -> dict[str, Array]:
    from raw12 import scene

    return {"packed": packed, "black": np.array(scene.BLACK, np.uint16), "gain": np.array(scene.GAIN, np.float32)}


def exchanged(packed: Array) -> Array:
    """The low four bits of the two pixels in each other's place."""
    wrong = packed.copy()
    wrong[..., 2::3] = packed[..., 2::3] << 4 | packed[..., 2::3] >> 4
    return wrong


def test_a_decoded_scene_is_near_and_the_set_sees_what_psnr_does_not(examples: None):
    from raw12 import scene

    from opgauge.oracles import judge
    from opgauge.reference_engine.evaluate import evaluate
    from opgauge.reference_engine.types import Observation, Policy, Status

    image = scene.scene()
    feeds = raw12_inputs(scene.pack(image))
    model = one_node("DequantizeRaw12", "example", feeds)
    exacts = evaluate(lower(model, feeds), feeds)

    def measure(given: Array) -> tuple[float, Status]:
        outputs = run(model, raw12_inputs(given)).outputs
        return scene.psnr_db(outputs[0], image), judge(exacts, Observation(Status.PASS, outputs), Policy()).status

    run = cpu.load()
    right, status = measure(feeds["packed"])
    assert right > 80
    assert status is Status.PASS
    nibbles, status = measure(exchanged(feeds["packed"]))
    assert scene.ENOUGH_DB < nibbles < right
    assert status is Status.FAIL
    swapped, status = measure(np.ascontiguousarray(feeds["packed"][..., ::-1]))
    assert swapped < scene.ENOUGH_DB
    assert status is Status.FAIL


def test_the_kernels_of_an_example_serve_its_primitive_alone(examples: None):
    find = finder(with_added(cpu.kernels(), "cpu"))
    assert find("example.WeightedSum", "", ("float32",) * 5) is not None
    assert find("example.WeightedSum", "", ("float64",) * 5) is None
    assert importlib.util.find_spec("weighted_sum") is not None
