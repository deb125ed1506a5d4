"""Each misbehaviour is charged to the case that did it, and the case after it is right again."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opgauge import isolation, wire, worker
from opgauge.backends import BACKENDS, UnknownBackendError, resolve
from opgauge.client import Client
from opgauge.reference_engine.types import Observation, Status

ADAPTER = """
import ctypes, os, signal, sys, threading, time
import numpy as np
from opgauge.reference_engine.errors import UnsupportedError

calls = [0]
late, hoard = [], []
held = np.zeros(3, np.float32)

def late_crash():
    threading.Thread(target=lambda: (time.sleep(0.05), os.kill(os.getpid(), signal.SIGSEGV))).start()

def run(model, inputs):
    x, kind = inputs["x"], model.decode()
    calls[0] += 1
    good = [x + np.float32(1)]
    if kind == "exit": os._exit(0)
    if kind == "segv": os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "abort": ctypes.CDLL(None).abort()
    if kind == "spin":
        while True: pass
    if kind == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "print":
        print("OPG1" * 10000); os.write(1, b"OPG1" * 50000); sys.stderr.write("x" * 300000)
    if kind == "clobber": x[1] = 7
    if kind == "differs": return [x + np.float32(calls[0])]
    if kind == "reused":
        held[:] = x + calls[0] * 0
        held[0] = calls[0]
        return [held]
    if kind == "shared":
        held[:] = good[0]
        return [held]
    if kind == "stale":
        late.append(good[0])
        return [late[-2] if len(late) % 64 == 0 else good[0]]
    if kind == "memory": raise MemoryError("plenty")
    if kind == "greedy": return [np.ones(1 << 40, np.uint8)]
    if kind == "raise": raise TypeError("\\x1b[31mred\\x1b[0m\\nsecond line")
    if kind == "sysexit": sys.exit(0)
    if kind == "refuse": raise UnsupportedError("no such kernel")
    if kind == "list": return [[1.0, 2.0]]
    if kind == "two": return good * 2
    if kind == "object": return [np.array([None])]
    if kind == "nothing": return None
    if kind == "round_up": ctypes.CDLL("libm.so.6").fesetround(0x800)
    if kind == "chdir": os.chdir("/")
    if kind == "fork":
        if os.fork() == 0: return good
    if kind == "late" and not late: late.append(late_crash())
    if kind == "thread": threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
    if kind == "descriptor": os.dup(2)
    if kind == "alarm": signal.setitimer(signal.ITIMER_REAL, 100)
    if kind == "umask": os.umask(0o77)
    if kind == "mask": signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if kind == "handler": signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if kind == "grows": hoard.append(np.ones(1 << 20, np.uint8))
    if kind == "hole":
        y = np.empty(1 << 14, np.float32)
        y[:9] = 1; y[10:] = 1
        return [y]
    if kind == "nan": return [np.array([0x7FC00000 + calls[0]], np.uint32).view(np.float32)]
    if kind == "strided": return [(x + np.float32(1)).repeat(2)[::2]]
    return good
"""
X = np.arange(3, dtype=np.float32)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("adapter") / "adapter.py"
    path.write_text(ADAPTER)
    with Client(resolve(f"{path}:run")) as client:
        yield client


def ask(client: Client, kind: str) -> Observation:
    client.submit(kind, kind.encode(), {"x": X}, n_outputs=1)
    return client.receive()


@pytest.mark.parametrize(
    ("kind", "status", "evidence"),
    [
        ("good", "pass", ""),  # control
        ("strided", "pass", ""),
        ("nan", "pass", ""),  # payloads of NaN differ from call to call
        ("print", "pass", ""),
        ("exit", "crash", "exit code 0"),
        ("segv", "crash", "SIGSEGV"),
        ("abort", "crash", "SIGABRT"),
        ("spin", "hang", "no result in 0.5 s"),
        ("stop", "hang", "no result in 0.5 s"),
        ("clobber", "clobbered", "input 'x' changed: 1 of 3 elements"),
        ("hole", "unwritten", "1 of 16384 elements of output 0 were never written"),  # of memory of its own
        ("differs", "flaky", "differs in 3 of 3 elements of output 0"),
        ("reused", "flaky", "earlier result overwritten by a later call (output 0)"),
        ("shared", "flaky", "earlier result overwritten by a later call (output 0)"),
        ("memory", "oom", "plenty"),
        ("greedy", "oom", "MemoryError"),
        ("raise", "fail", "raised TypeError: red"),
        ("sysexit", "fail", "raised SystemExit: 0"),
        ("refuse", "unsupported", "no such kernel"),
        ("list", "fail", "output 0 is list, not a numpy array"),
        ("two", "fail", "returned 2 outputs, the model has 1"),
        ("object", "fail", "numpy dtype object"),
        ("nothing", "fail", "returned NoneType"),
        ("chdir", "leak", "working directory"),
        ("fork", "leak", "a child process"),
        ("thread", "leak", "more threads running"),
        ("descriptor", "leak", "open descriptors"),
        ("alarm", "leak", "timers running"),
        ("umask", "leak", "file mode mask 0077"),
        ("mask", "leak", "blocked signals"),
        ("handler", "leak", "ignored signals"),
        ("grows", "leak", "resident memory grows by 10"),
        ("round_up", "leak", "rounding mode upward"),
    ],
)
def test_a_misbehaviour_is_charged_to_its_case_and_the_next_case_is_right(
    client: Client, kind: str, status: str, evidence: str
) -> None:
    if kind == "round_up" and not Path("/proc/self").exists():
        pytest.skip("the number of the rounding mode is that of x86 Linux")
    before = ask(client, "good")
    patience, client.timeout_s = client.timeout_s, 0.5 if status == "hang" else client.timeout_s
    seen = ask(client, kind)
    client.timeout_s = patience
    after = ask(client, "good")

    assert (seen.status, evidence in seen.message) == (Status(status), True), seen
    for control in (before, after):
        assert control.status is Status.PASS
        np.testing.assert_array_equal(control.outputs[0], X + 1)
    assert "\x1b" not in seen.message


@pytest.mark.parametrize(("rounds", "status"), [(1, Status.PASS), (40, Status.FLAKY)])
def test_state_that_shows_once_in_64_calls_needs_that_many_calls(client: Client, rounds: int, status: Status) -> None:
    client.submit("stale", b"stale", {"x": X}, n_outputs=1, rounds=rounds)

    assert client.receive().status is status


def test_a_process_that_dies_after_its_result_is_charged_to_that_case(client: Client) -> None:
    assert ask(client, "late").status is Status.PASS
    time.sleep(0.4)

    assert ask(client, "good").status is Status.PASS
    ((case, message),) = client.late_deaths
    assert case == "late"
    assert "SIGSEGV" in message


def test_a_reply_that_nobody_fetched_does_not_answer_the_next_case(client: Client) -> None:
    client.submit("refuse", b"refuse", {"x": X})

    assert ask(client, "good").status is Status.PASS


def test_a_worker_ends_when_its_client_does(client: Client, tmp_path: Path) -> None:
    with Client(client.spec) as other:
        assert ask(other, "good").status is Status.PASS
        assert other._kernel is not None
        pid = other._kernel.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(not isolation.LINUX, reason="elsewhere only the end of the request pipe tells a worker")
def test_no_worker_outlives_a_killed_client_even_in_a_busy_loop(client: Client) -> None:
    code = (
        "import sys, time, numpy as np\n"
        "from opgauge.client import Client\n"
        "from opgauge.backends import resolve\n"
        "client = Client(resolve(sys.argv[1]))\n"
        "client.submit('good', b'good', {'x': np.zeros(3, np.float32)})\n"
        "client.receive()\n"
        "client.submit('spin', b'spin', {'x': np.zeros(3, np.float32)})\n"
        "print(client._kernel.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, client.spec.text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        worker = int(parent.stdout.readline())
        assert state(worker) in "RS"  # control
        parent.kill()
    deadline = time.monotonic() + 5
    while state(worker) not in "XZ":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state(pid: int) -> str:
    """R, S, ... Z for a zombie that nobody collected, X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@pytest.mark.parametrize("text", ["no_such_module_of_mine:run", "missing.py:run", "faults:missing.py:N01"])
def test_a_backend_that_cannot_be_loaded_is_unavailable_and_says_why(text: str) -> None:
    with Client(resolve(text)) as client:
        seen = ask(client, "good")
        assert seen.status is Status.UNAVAILABLE
        assert "missing.py" in seen.message or "no_such_module_of_mine" in seen.message
        assert ask(client, "good") == seen


def test_a_backend_that_dies_while_loading_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "dies.py"
    path.write_text("import os\nos.abort()\n")
    with Client(resolve(f"{path}:run")) as client:
        seen = ask(client, "good")
    assert seen.status is Status.UNAVAILABLE
    assert "SIGABRT" in seen.message


def test_a_fault_module_is_loaded_with_its_folder_and_reset(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import numpy as np\nONE = np.float32(1)\n")
    (tmp_path / "mod.py").write_text(
        "from beside import ONE\n"
        "class Fault:\n"
        "    def __init__(self, id): self.id, self.ready = id, False\n"
        "    def reset(self): self.ready = True\n"
        "    def run(self, model, inputs, base): assert self.ready; return [inputs['x'] + ONE]\n"
        "FAULTS, BENIGN = [Fault('N01')], [Fault('B01')]\n"
    )
    for name, status in {"N01": Status.PASS, "B01": Status.PASS, "N02": Status.UNAVAILABLE}.items():
        with Client(resolve(f"faults:{tmp_path / 'mod.py'}:{name}")) as client:
            assert ask(client, "good").status is status


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (300, 1000)])
def test_every_dtype_and_shape_survives_the_wire(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(resolve_dtype(dtype))
    frame = wire.encode({"k": 1}, [(dtype, x.shape, x.tobytes()), (dtype, x.shape, x.tobytes())])
    header_length, payload_length = wire.lengths(frame[: wire.PREFIX.size])
    payload = frame[wire.PREFIX.size + header_length :]
    assert len(payload) == payload_length
    header = wire.decode_header(frame[wire.PREFIX.size :][:header_length])
    for y in wire.tensors_of(header, payload):
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(x, y)


def resolve_dtype(word: str) -> np.dtype:
    from opgauge.reference_engine.dtypes import numpy_dtype

    return numpy_dtype(word)


@pytest.mark.parametrize(
    "tensors",
    [
        [["float32", [3]]],  # 12 bytes of 64: nothing missing, but 64 - 12 - 52 padding is right
        [["float32", [30]]],
        [["object", [1]]],
        [["float32", [-1]]],
        [["float32", [2**40, 2**40]]],
        [["float32", [1.5]]],
        [],
        ["float32"],
    ],
)
def test_a_header_that_does_not_describe_its_bytes_is_refused(tensors: list) -> None:
    if tensors == [["float32", [3]]]:  # control
        assert wire.tensors_of({"tensors": tensors}, bytes(64))[0].shape == (3,)
        return
    with pytest.raises(wire.WireError):
        wire.tensors_of({"tensors": tensors}, bytes(64))


def test_backends_are_spelled_one_way_and_unknown_ones_name_their_neighbours() -> None:
    assert resolve("onnxruntime:threads=1,level=basic").text == "onnxruntime:level=basic,threads=1"
    assert resolve("onnxruntime").definition is BACKENDS["onnxruntime"]
    assert resolve("a.b:run").kind == "callable"
    with pytest.raises(UnknownBackendError, match="did you mean onnxruntime"):
        resolve("onnxrutime")
    with pytest.raises(UnknownBackendError, match="level, threads"):
        resolve("onnxruntime:lvel=basic")
    with pytest.raises(UnknownBackendError, match=r"PATH\.py:FAULT_ID"):
        resolve("faults:N01")


def test_onnxruntime_computes_and_refuses_and_says_what_it_is() -> None:
    from onnx import TensorProto, helper

    def model(elem_type: int) -> bytes:
        a, b, y = (helper.make_tensor_value_info(n, elem_type, [3]) for n in "aby")
        graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", [a, b], [y])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8).SerializeToString()

    with Client(resolve("onnxruntime:level=disable")) as client:
        client.submit("add", model(TensorProto.FLOAT), {"a": X, "b": X})
        seen = client.receive()
        np.testing.assert_array_equal(seen.outputs[0], X + X)
        assert seen.times_ns["call1"] > 0
        client.submit("int8", model(TensorProto.INT8), {"a": X.astype("int8"), "b": X.astype("int8")})
        assert client.receive().status in (Status.UNSUPPORTED, Status.PASS)
        client.submit("garbage", b"not a model", {})
        assert client.receive().status is Status.UNSUPPORTED
        assert "CPUExecutionProvider" in client.info["providers"]


@pytest.mark.parametrize(
    ("kib", "calls"),
    [
        ([144] * 25 + [0] * 99, 0),  # an allocator that grows, then reuses: onnx's reference does this
        ([144] * 99, 48),
        ([4096] * 99, 4),
        ([0] * 99, 0),
    ],
)
def test_memory_that_grows_for_a_while_is_no_leak(monkeypatch: pytest.MonkeyPatch, kib: list[int], calls: int) -> None:
    resident = itertools.accumulate((k << 10 for k in kib), initial=0)
    monkeypatch.setattr(worker.watch, "load", lambda fd, told=b"": worker.watch.Load(1, 3, 0, next(resident)))
    case = worker.Case(b"", ["x"], [np.zeros(1, np.float32)], 2, 1)
    places = worker.Places({"x": case.inputs[0]}, [], [], [])

    def run(model: bytes, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [inputs["x"]]

    if calls:
        with pytest.raises(worker._Stop, match=rf"{kib[0]} KiB in every call \({calls} calls\)"):
            worker._check_leak(run, case, places, 0)
    else:
        worker._check_leak(run, case, places, 0)
