"""A primitive graph as a list of dispatches: pure, needs no device.

A kernel row's `call(build, *inputs, out, *attrs)` takes the `Builder` and `Tensor`s instead of arrays, attrs in the
primitive's order, and appends the dispatches that fill `out`. Empty outputs never reach a kernel; an empty input
must not be bound (wgpu aborts the process on a binding of no bytes), so a kernel meeting one fills `out` otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from opgauge.reference_engine import dtypes as dt
from opgauge.reference_engine.errors import UnsupportedError
from opgauge.reference_engine.executor import Find, counts
from opgauge.reference_engine.placement import HOST, crossings, is_transfer, place
from opgauge.reference_engine.primitives import primitive_of
from opgauge.reference_engine.types import Array, Graph, Kernel, Node, TensorSpec

from .shader import WORD

# llvmpipe silently ends all loops of an invocation after 65,535 iterations; no kernel asks for more than this.
MAX_ITERATIONS = 32_768


@dataclass(frozen=True)
class Tensor:
    """A tensor on the device: a buffer's number and how its bytes are read."""

    id: int
    spec: TensorSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def size(self) -> int:
        return self.spec.size


@dataclass(frozen=True)
class Dispatch:
    """`count` invocations of a shader; `params` are p[1].. as unsigned words, p[0] is `count`."""

    code: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    params: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Copy:
    """`size` bytes from the start of one buffer into another at `offset`."""

    source: int
    target: int
    offset: int
    size: int


@dataclass(frozen=True)
class Clear:
    target: int


@dataclass(frozen=True)
class HostNode:
    """A node computed on the CPU; no kernel for a view."""

    node: Node
    kernel: Kernel | None
    attrs: tuple[object, ...]


@dataclass(frozen=True)
class HostCall:
    """Nodes computed by kernels of the CPU in one go: `reads` are read back before, `writes` uploaded after."""

    nodes: tuple[HostNode, ...]
    reads: tuple[tuple[str, Tensor], ...]
    writes: tuple[tuple[str, Tensor], ...]


Step = Dispatch | Copy | Clear | HostCall


@dataclass(frozen=True)
class IndexCheck:
    """Where an index of `what` may be out of range: of the graph input `name`, else as the kernel's flag says."""

    what: str
    flag: Tensor
    name: str = ""
    length: int = 0


@dataclass(frozen=True)
class Program:
    """Everything that a device needs to run a graph: `sizes` in bytes by buffer number.

    `once` reads constants only (packed weights, broadcast scalars): it runs when the program is loaded. An output is a
    tensor, or the name of one that the host made.
    """

    once: tuple[Dispatch, ...]
    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    constants: Mapping[int, Array]
    inputs: Mapping[str, Tensor]
    outputs: tuple[Tensor | str, ...]
    checks: tuple[IndexCheck, ...]
    counts: Mapping[str, int]
    host: Graph | None = None

    @property
    def read_back(self) -> tuple[Tensor, ...]:
        """The outputs that the device made."""
        return tuple(y for y in self.outputs if isinstance(y, Tensor))


def word_bytes(size: int) -> int:
    """A buffer's bytes: whole words, never none."""
    return max(WORD, -(-size // WORD) * WORD)


@dataclass
class Builder:
    """Collects steps and numbers buffers; `limit` bytes is the largest binding."""

    limit: int
    source: str = ""
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    checks: list[IndexCheck] = field(default_factory=list)

    def temporary(self, shape: Sequence[int], dtype: str) -> Tensor:
        """A new buffer. Raises: UnsupportedError when it is larger than a binding may be."""
        spec = TensorSpec(tuple(int(d) for d in shape), dtype)
        needed = word_bytes(spec.size * dt.numpy_dtype(dtype).itemsize)
        if needed > self.limit:
            raise UnsupportedError(
                f"{self.source}: {spec} needs {needed} bytes in one buffer, this device binds at most {self.limit}"
            )
        self.sizes.append(needed)
        return Tensor(len(self.sizes) - 1, spec)

    def constant(self, array: Array) -> Tensor:
        """A buffer with this content, uploaded once per device."""
        made = self.temporary(array.shape, dt.word_of(array.dtype))
        self.constants[made.id] = array
        return made

    def dispatch(
        self, code: str, reads: Sequence[Tensor], writes: Sequence[Tensor], params: Sequence[int], count: int
    ) -> None:
        words = tuple(int(v) & 0xFFFFFFFF for v in params)
        ids = tuple(x.id for x in reads), tuple(y.id for y in writes)
        self.steps.append(Dispatch(code, *ids, words, count))

    def copy(self, source: Tensor, target: Tensor, offset: int) -> int:
        """Put all words of `source` into `target` at `offset` bytes; returns the offset behind them."""
        self.steps.append(Copy(source.id, target.id, offset, self.sizes[source.id]))
        return offset + self.sizes[source.id]

    def clear(self, target: Tensor) -> None:
        self.steps.append(Clear(target.id))

    def data(self, x: Tensor) -> Array | None:
        """The content of a constant."""
        return self.constants.get(x.id)

    def input_name(self, x: Tensor) -> str:
        return next((name for name, t in self.inputs.items() if t.id == x.id), "")


def bind(
    graph: Graph, find: Find, limit: int, fallback: Find | None = None, wanted: Callable[[Node], bool] | None = None
) -> Program:
    """The program of a graph. Nodes without a kernel go to `fallback`'s, as do those that `wanted` asks for.

    Raises: UnsupportedError naming the node and the dtypes for which there is no kernel.
    """
    lacking: set[str] = set()

    def on_host(node: Node) -> bool:
        if fallback is None:
            return False
        if kernel_of(find, graph, node) is None:
            lacking.add(node.output)
            return True
        return wanted is not None and wanted(node)

    placed = place(graph, on_host)
    graph = placed.graph
    build = Builder(limit)
    values: dict[str, Tensor] = {}
    for name in graph.inputs:
        build.source = f"input {name!r}"
        spec = graph.specs[name]
        values[name] = build.inputs[name] = build.temporary(spec.shape, spec.dtype)
    for name, array in graph.constants.items():
        values[name] = build.constant(array)
    stretch: list[Node] = []
    for node in graph.nodes:
        if is_transfer(node) or placed.device[node.output] == HOST:
            stretch.append(node)
            continue
        _end_stretch(build, stretch, graph, values, fallback)
        build.source = node.source
        values[node.output] = _bind_node(build, node, graph, values, find)
    _end_stretch(build, stretch, graph, values, fallback)
    outputs = tuple(name if placed.device.get(name) == HOST else values[name] for name in graph.outputs)
    once, steps = hoist(build.steps, build.constants)
    on_cpu = placed.count(HOST)
    where = {**crossings(placed), "fallback_count": len(lacking), "host_count": on_cpu}
    return Program(
        once,
        steps,
        tuple(build.sizes),
        build.constants,
        build.inputs,
        outputs,
        tuple(build.checks),
        {**counts(graph), **_tally(steps), **where},
        graph if on_cpu else None,
    )


def kernel_of(find: Find, graph: Graph, node: Node) -> Kernel | None:
    return find(node.primitive, node.fn, tuple(graph.specs[name].dtype for name in (*node.inputs, node.output)))


def attributes_of(node: Node) -> tuple[object, ...]:
    return tuple(node.attrs.get(name, "") for name in primitive_of(node.primitive).fns[node.fn])


def no_kernel(graph: Graph, node: Node, device: str) -> UnsupportedError:
    dtypes = ", ".join(graph.specs[name].dtype for name in (*node.inputs, node.output))
    return UnsupportedError(f"{node.source}: {device} has no kernel for {node.kind} with {dtypes}")


def _end_stretch(
    build: Builder, stretch: list[Node], graph: Graph, values: dict[str, Tensor], fallback: Find | None
) -> None:
    """What the host does between two stretches of the device, as one step."""
    if not stretch:
        return
    reads, writes, nodes = [], [], []
    for node in stretch:
        build.source = node.source
        if is_transfer(node) and node.attrs["to"] == HOST:
            reads.append((node.output, values[node.inputs[0]]))
        elif is_transfer(node):
            spec = graph.specs[node.output]
            values[node.output] = build.temporary(spec.shape, spec.dtype)
            writes.append((node.inputs[0], values[node.output]))
        elif node.kind == "DataMove.reshape":
            nodes.append(HostNode(node, None, ()))
        else:
            kernel = kernel_of(fallback, graph, node) if fallback else None
            if kernel is None:
                raise no_kernel(graph, node, "neither wgpu nor cpu")
            nodes.append(HostNode(node, kernel, attributes_of(node)))
    build.steps.append(HostCall(tuple(nodes), tuple(reads), tuple(writes)))
    stretch.clear()


def _bind_node(build: Builder, node: Node, graph: Graph, values: Mapping[str, Tensor], find: Find) -> Tensor:
    spec = graph.specs[node.output]
    inputs = tuple(values[name] for name in node.inputs)
    if node.kind == "DataMove.reshape":
        return replace(inputs[0], spec=spec)
    kernel = kernel_of(find, graph, node)
    if kernel is None:
        raise no_kernel(graph, node, "wgpu")
    out = build.temporary(spec.shape, spec.dtype)
    if spec.size:
        kernel.call(build, *inputs, out, *attributes_of(node))
    return out


def hoist(steps: Sequence[Step], constants: Mapping[int, Array]) -> tuple[tuple[Dispatch, ...], tuple[Step, ...]]:
    """Dispatches that depend on constants alone, and the rest.

    Copies and clears stay: several of them may fill one buffer, together with what is known only at run time.
    """
    constant = set(constants)
    once: list[Dispatch] = []
    rest: list[Step] = []
    for step in steps:
        if isinstance(step, Dispatch) and constant.issuperset(step.reads):
            constant.update(step.writes)
            once.append(step)
        else:
            rest.append(step)
    return tuple(once), tuple(rest)


def _tally(steps: Sequence[Step]) -> dict[str, int]:
    kinds = Counter(type(step) for step in steps)
    return {"dispatch_count": kinds[Dispatch], "copy_count": kinds[Copy]}


def pieces(total: int, most: int = MAX_ITERATIONS) -> list[tuple[int, int]]:
    """[0, total) in runs of at most `most`, each of which one invocation may loop over."""
    return [(start, min(start + most, total)) for start in range(0, total, most)]


def last_uses(program: Program) -> dict[int, int]:
    """The index of the last step that touches each buffer; those that live through the run are absent."""
    kept = {*program.constants, *(t.id for t in program.inputs.values()), *(t.id for t in program.read_back)}
    kept |= {c.flag.id for c in program.checks}
    kept |= {id for step in program.once for id in touched(step)}
    last: dict[int, int] = {}
    for at, step in enumerate(program.steps):
        last.update(dict.fromkeys(touched(step), at))
    return {id: at for id, at in last.items() if id not in kept}


def touched(step: Step) -> tuple[int, ...]:
    if isinstance(step, Dispatch):
        return (*step.reads, *step.writes)
    if isinstance(step, Copy):
        return step.source, step.target
    if isinstance(step, Clear):
        return (step.target,)
    return tuple(x.id for _, x in (*step.reads, *step.writes))


def stack_size(shape: Sequence[int]) -> int:
    return math.prod(shape[:-2])


def index_map(size: int, own: Sequence[int], full: Sequence[int]) -> Array:
    """For each place of `full`, the flat index of the element that broadcasts to it from shape `own`."""
    at = np.arange(size, dtype=np.uint32).reshape(tuple(own))
    return np.ascontiguousarray(np.broadcast_to(at, tuple(full))).ravel()
