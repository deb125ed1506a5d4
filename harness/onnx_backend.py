"""Our engine as `onnx.backend.base.Backend`, for ONNX's own test runner and for whoever speaks that interface.

    import onnx.backend.test, opgauge.onnx_backend
    tests = onnx.backend.test.BackendTest(opgauge.onnx_backend, __name__)
    for name in opgauge.onnx_backend.DISPUTED:
        tests.exclude(name)
    globals().update(tests.test_cases)

The other way round, `opgauge run --backend onnx-backend:class=MODULE:CLASS` judges any such class.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from opgauge.backends import RunResult
from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import BackendUnavailableError, UnknownOperatorError, UnsupportedError
from opgauge.reference_engine.types import Array
from opgauge.suites.onnx_node import STORED_WRONG

# Tests of ONNX's that a right kernel may fail, and why: stored outputs that contradict the documentation, or a
# tolerance that is narrower than two roundings.
DISPUTED: Mapping[str, str] = {
    **STORED_WRONG,
    "test_attention_4d_causal_fp16_expanded": "1e-3 is less than two roundings to float16; ours is nearer to the "
    "exact value than the stored output",
}

Run = Callable[[bytes, Mapping[str, Array]], RunResult]


@cache
def loaded(module: str) -> Run:
    """Raises: BackendUnavailableError."""
    run: Run = importlib.import_module(module).load()
    return run


class Prepared(BackendRep):
    """A model, ready to be run many times."""

    def __init__(self, model: onnx.ModelProto, run: Run) -> None:
        self._model, self._run = model.SerializeToString(), run
        stored = {t.name for t in model.graph.initializer}
        self._inputs = {i.name: i for i in model.graph.input}
        self._required = [name for name in self._inputs if name not in stored]

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        """`inputs` by name or in graph order. Raises: BackendIsNotSupposedToImplementIt for what is not lowered."""
        named = self._named(inputs)
        try:
            return tuple(self._run(self._model, named).outputs)
        except (UnknownOperatorError, UnsupportedError) as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error

    def _named(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            return {name: np.asarray(value) for name, value in inputs.items()}
        listed = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        names = list(self._inputs) if len(listed) == len(self._inputs) else self._required
        if len(listed) != len(names):
            raise ValueError(f"{len(listed)} inputs for a model that has {len(names)}: {', '.join(names)}")
        for name, value in zip(names, listed, strict=True):
            if not isinstance(value, np.ndarray | np.generic):
                raise BackendIsNotSupposedToImplementIt(f"input {name} is {type(value).__name__}, not a tensor")
        return {name: np.asarray(value) for name, value in zip(names, listed, strict=True)}


class CpuBackend(Backend):
    """The numba engine."""

    module: ClassVar[str] = "opgauge.backends.cpu"

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.partition(":")[0] == "CPU" and cls.usable()

    @classmethod
    def usable(cls) -> bool:
        try:
            loaded(cls.module)
        except BackendUnavailableError:
            return False
        return True

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Is every operator lowered. Shapes that only inputs decide cannot be asked here."""
        return not unlowered(model)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
        """Raises: BackendIsNotSupposedToImplementIt naming the first operator or type that is not lowered."""
        if reason := unlowered(model):
            raise BackendIsNotSupposedToImplementIt(reason)
        return Prepared(model, loaded(cls.module))

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """One node, with the opset `opset_version` or onnx's own newest."""
        listed = [np.asarray(i) for i in inputs]
        names = [name for name in dict.fromkeys(node.input) if name]
        given = [
            helper.make_tensor_value_info(name, dt.ONNX[dt.word_of(x.dtype)], x.shape)
            for name, x in zip(names, listed, strict=True)
        ]
        made = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        opset = helper.make_opsetid(node.domain, kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        graph = helper.make_graph([node], node.op_type, given, made)
        return cls.prepare(helper.make_model(graph, opset_imports=[opset]), device).run(listed)


class WgpuBackend(CpuBackend):
    """The WGSL engine, under the device name CPU: ONNX's runner knows no other that fits."""

    module: ClassVar[str] = "opgauge.backends.wgpu"


def unlowered(model: onnx.ModelProto) -> str:
    """Why this model cannot be ours whatever its inputs are, or an empty string."""
    from opgauge.reference_engine.operators import OPERATORS

    for value in [*model.graph.input, *model.graph.output]:
        kind = value.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            return f"{value.name} is a {kind.removesuffix('_type')}, not a tensor"
        code = value.type.tensor_type.elem_type
        if code and code not in dt.NAME:
            return f"{value.name} has element type {onnx.TensorProto.DataType.Name(code)}"
    functions = {(f.domain, f.name) for f in model.functions}
    folded = {("", "Constant"), ("ai.onnx", "Constant")}  # no operator: `lower` takes its value
    for node in model.graph.node:
        if (node.domain, node.op_type) not in OPERATORS.keys() | functions | folded:
            return f"operator {node.domain or 'ai.onnx'}::{node.op_type} is not lowered"
    return ""


prepare, run_model, run_node = CpuBackend.prepare, CpuBackend.run_model, CpuBackend.run_node
supports_device, is_compatible = CpuBackend.supports_device, CpuBackend.is_compatible
