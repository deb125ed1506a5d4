"""onnxruntime with its inputs and outputs bound once, so that a call is the computation alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from opgauge.reference_engine.errors import BackendUnavailableError
from opgauge.reference_engine.types import Array


def bound(
    model: bytes, inputs: Mapping[str, Array], outputs: Mapping[str, Array], threads: int = 1
) -> tuple[Callable[[], None], Callable[[], dict[str, Array]]]:
    """A call that computes on `threads` threads without spinning, and what it has written; `outputs` tell shape, type.

    Raises: BackendUnavailableError.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime: {error}; pip install onnxruntime") from error
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x)) for name, x in inputs.items()}
    made = {name: ort.OrtValue.ortvalue_from_numpy(np.empty_like(x)) for name, x in outputs.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in made.items():
        binding.bind_ortvalue_output(name, value)

    def call() -> None:
        session.run_with_iobinding(binding)

    return call, lambda: {name: value.numpy() for name, value in made.items()}
