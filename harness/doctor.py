"""What this machine can measure: versions, runtimes, processor, Vulkan adapters, the noise of its clock."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from opgauge.backends import resolve, table

from .client import Client
from .worker import clean

PACKAGES = ("opgauge", "numpy", "ml_dtypes", "onnx", "onnxruntime", "numba", "llvmlite", "wgpu", "hypothesis")
ADAPTER_TIMEOUT_S = 60.0
NOISE_ROUNDS = 200

# In a process of its own: a broken driver may abort it.
_ADAPTERS = """
import json, wgpu
print(json.dumps([dict(a.info) for a in wgpu.gpu.enumerate_adapters_sync()], default=str))
"""


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = f"missing: pip install {name}"
    return found


def machine() -> dict[str, str]:
    """System, processor and its features, cores, load."""
    found = {"system": platform.platform(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {**found, "cpu": platform.processor() or "unknown"}
    words = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    flags = (words.get("flags") or words.get("Features") or "").split()
    wanted = ("avx", "vnni", "amx", "fma", "asimd", "i8mm", "sve", "bf16", "f16c")
    found["cpu"] = words.get("model name", "unknown")
    found["features"] = " ".join(sorted(f for f in flags if any(w in f for w in wanted)))
    if hasattr(os, "getloadavg"):
        found["load"] = " ".join(f"{x:.2f}" for x in os.getloadavg())
    return found


def runtimes(texts: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """What each backend says of itself, each asked in a worker of its own, all at once."""
    clients = {text: Client(resolve(text)) for text in texts or sorted(table())}
    try:
        return {text: dict(client.info) for text, client in clients.items()}
    finally:
        for client in clients.values():
            client.close()


def adapters() -> list[dict[str, str]] | str:
    """Vulkan, Metal or D3D12 adapters that wgpu sees, or why there are none."""
    command = [sys.executable, "-P", "-c", _ADAPTERS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ADAPTER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"wgpu did not answer in {ADAPTER_TIMEOUT_S:g} s"
    if done.returncode:
        return clean((done.stderr.strip().splitlines() or [f"wgpu ended with {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1]) or "no adapter: install a Vulkan driver (mesa-vulkan-drivers)"


def timer() -> dict[str, float]:
    """Units: microseconds; a fixed loop of about 0.2 ms repeated."""
    seen = []
    for _ in range(NOISE_ROUNDS):
        start = time.perf_counter_ns()
        sum(range(10_000))
        seen.append((time.perf_counter_ns() - start) / 1e3)
    seen.sort()
    low, middle, high = (seen[int(NOISE_ROUNDS * q)] for q in (0.1, 0.5, 0.9))
    return {
        "resolution_us": time.get_clock_info("perf_counter").resolution * 1e6,
        "p10_us": round(low, 2),
        "p50_us": round(middle, 2),
        "p90_us": round(high, 2),
        "noise_percent": round(100 * (high - low) / middle, 1),
    }


def examine() -> dict[str, Any]:
    """Everything, as plain values."""
    return {
        "versions": versions(),
        "machine": machine(),
        "backends": runtimes(),
        "adapters": adapters(),
        "timer": timer(),
    }
