"""python -m raw12 [BACKEND ...]: the PSNR of a decoded scene on each backend; exit 1 below 45 dB."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import onnx
from onnx import helper

from opgauge.backends import resolve

from .scene import BLACK, ENOUGH_DB, GAIN, pack, psnr_db, scene

INPUTS = {
    "packed": pack(scene()),
    "black": np.array(BLACK, np.uint16),
    "gain": np.array(GAIN, np.float32),
}


def model() -> bytes:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in INPUTS.items()
    ]
    node = helper.make_node("DequantizeRaw12", list(INPUTS), ["y"], domain="example")
    graph = helper.make_graph([node], "raw12", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def main(names: list[str]) -> int:
    worst = float("inf")
    for name in names:
        spec = resolve(name)
        run = importlib.import_module(spec.definition.module).load(**dict(spec.options))
        found = psnr_db(run(model(), INPUTS).outputs[0], scene())
        worst = min(worst, found)
        print(f"{spec.text}: {found:.1f} dB")
    return 0 if worst >= ENOUGH_DB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["raw12", "cpu"]))
