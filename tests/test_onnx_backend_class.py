"""Any class of ONNX's backend interface is judged as a backend: `onnx-backend:class=MODULE:CLASS`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from opgauge import check, model
from opgauge.backends import onnx_backend, resolve
from opgauge.client import Client
from opgauge.reference_engine.case import parse_id
from opgauge.reference_engine.errors import BackendUnavailableError, UnsupportedError
from opgauge.reference_engine.types import Case, Record, Status

CLASSES = """
import numpy as np, onnx
from onnx.backend.base import Backend, BackendRep

class Rep(BackendRep):
    def __init__(self, op, wrong):
        self.op, self.wrong = op, wrong
    def run(self, inputs, **kwargs):
        (x,) = inputs
        y = np.maximum(x, 0) if self.op == "Relu" else np.negative(x)
        return (y + self.wrong,)

class Honest(Backend):
    wrong = 0
    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        return model.graph.node[0].op_type != "Abs"
    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        onnx.checker.check_model(model)  # as onnxruntime's does: it wants the shapes of outputs
        if model.graph.node[0].op_type == "Sign":
            raise NotImplementedError("Sign")
        return Rep(model.graph.node[0].op_type, cls.wrong)

class Faulty(Honest):
    wrong = 1

class Neither:
    pass
"""


def case_of(op: str) -> Case:
    return parse_id(f"{op}/int32/op14/X=int32:3:-1,0,5/y=int32/plain/s0")[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "classes_of_ours.py").write_text(CLASSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "classes_of_ours", raising=False)
    return tmp_path


def judged(name: str, op: str) -> Record:
    with Client(resolve(f"onnx-backend:class=classes_of_ours:{name}"), timeout_s=120.0) as client:
        return check.check(check.subject_of(case_of(op), "int32"), [client])[0]


@pytest.mark.parametrize(("name", "status"), [("Honest", Status.PASS), ("Faulty", Status.FAIL)])
def test_a_class_in_the_current_folder_is_judged(folder: Path, name: str, status: Status) -> None:
    assert judged(name, "Relu").status is status


@pytest.mark.parametrize(("op", "message"), [("Abs", "not compatible"), ("Sign", "Sign")])
def test_what_a_class_refuses_is_unsupported(folder: Path, op: str, message: str) -> None:
    data, feeds = model.build(case_of(op))
    run = onnx_backend.load(**{"class": "classes_of_ours:Honest"})
    with pytest.raises(UnsupportedError, match=message):
        run(data, feeds)
    data, feeds = model.build(case_of("Neg"))
    np.testing.assert_array_equal(run(data, feeds).outputs[0], [1, 0, -5])  # control


@pytest.mark.parametrize(
    ("place", "message"),
    [("classes_of_ours:Neither", "no `prepare`"), ("classes_of_ours:None_", "None_"), ("no_such_module:X", "no_such")],
)
def test_what_is_no_such_class_is_unavailable(folder: Path, place: str, message: str) -> None:
    before = list(sys.path)
    with pytest.raises(BackendUnavailableError, match=message):
        onnx_backend.load(**{"class": place})
    assert sys.path == before
