"""Which branches of a graph run: a copy of the graph with counters as outputs, and a session that collects them.

A branch is one side of an If, or the body of a Scan or a Loop, in the main graph or in a function. How often each ran
becomes an output of every graph around it; loops sum the counts of their iterations, so that an inner loop may have a
different number of iterations each time. Imports no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from posexport.base.spec import PartSpec
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.graph.queries import bodies
from posexport.proof.subjects.runner import Runner
from posexport.run.providers import bundle_session
from posexport.run.wrapped_session import WrappedSession

#: prefix of the added values' names
_PROBE = "posexport_branch/"
#: the attributes that hold bodies; one of an If's two runs
_BODIES = {"If": ("then_branch", "else_branch"), "Scan": ("body",), "Loop": ("body",)}


@dataclass(frozen=True, order=True)
class Branch:
    """One body of the control-flow node ``node``; ``part`` is the file where a model has several graphs."""

    node: str
    body: str
    part: str = ""

    def __str__(self) -> str:
        where = f"{self.part}: " if self.part else ""
        return f"{where}{self.node} ({self.body.removesuffix('_branch')})"


@dataclass(frozen=True)
class Probe:
    """An int64 array [2] in some graph: how often the first body of a node ran, and the second one of an If."""

    node: str
    op_type: str
    value: str

    def ran(self, values: np.ndarray[Any, Any]) -> Iterator[tuple[str, str]]:
        """(node, body) of each body that ran, from the array's values."""
        for body, times in zip(_BODIES[self.op_type], values.tolist(), strict=False):
            if times:
                yield self.node, body


class Watched(Runner):
    """A `Runner` on graphs that say which branches ran; ``ran`` grows with every call."""

    def __init__(
        self,
        model: Path | bytes,
        *,
        parts: Sequence[PartSpec] = (),
        provider: str = DEFAULT_PROVIDER,
        threads: int = 0,
        **names: Any,
    ) -> None:
        self.ran: set[Branch] = set()
        self.branches: set[Branch] = set()
        make = partial(self._session, provider=provider, threads=threads, whole=not parts)
        super().__init__(model, parts=parts, make=make, **names)

    def _session(self, model: Path | bytes, *, provider: str, threads: int, whole: bool) -> "_WatchedSession":
        loaded = ir.from_proto(onnx.ModelProto.FromString(model)) if isinstance(model, bytes) else ir.load(model)
        file = "" if whole or isinstance(model, bytes) else model.name
        probes = watch(loaded)
        self.branches |= {Branch(probe.node, body, file) for probe in probes for body in _BODIES[probe.op_type]}
        weights = None if isinstance(model, bytes) else model.parent
        data = ir.to_proto(loaded).SerializeToString()
        del loaded  # the session has the weights once more
        session = bundle_session(data, provider=provider, threads=threads, spinning=False, weights=weights)
        # which it keeps in case that it is made again
        session._model_bytes = None  # noqa: SLF001
        return _WatchedSession(session, probes, file, self.ran)


class _WatchedSession(WrappedSession):
    """A session with the original graph's outputs, which adds the branches that ran to ``ran``."""

    def __init__(self, session: Any, probes: Sequence[Probe], part: str, ran: set[Branch]) -> None:
        super().__init__(session)
        self._probes, self._part, self._ran = list(probes), part, ran

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any = None) -> Any:
        outputs = self._session.run([*names, *(probe.value for probe in self._probes)], feeds, options)
        probed = outputs[len(names) :]
        ran = (body for probe, values in zip(self._probes, probed, strict=True) for body in probe.ran(values))
        self._ran |= {Branch(node, body, self._part) for node, body in ran}
        return outputs[: len(names)]

    def get_outputs(self) -> list[Any]:
        return [value for value in super().get_outputs() if not value.name.startswith(_PROBE)]


def has_branches(model: Path | bytes, parts: Sequence[PartSpec] = ()) -> bool:
    """Whether a graph of ``model`` (the directory of their files with ``parts``) has a branch."""
    if isinstance(model, bytes):
        files = [onnx.ModelProto.FromString(model)]
    else:
        paths = [model / file for file in dict.fromkeys(part.file for part in parts)] or [model]
        files = [onnx.load(path, load_external_data=False) for path in paths]
    # a branch inside another one has that around it
    nodes = (node for file in files for graph in (file.graph, *file.functions) for node in graph.node)
    return any(node.op_type in _BODIES for node in nodes)


def watch(model: ir.Model) -> list[Probe]:
    """Add outputs that say which branches ran, in place; returns what they are called."""
    watcher = _Watcher(model)
    probes = watcher.graph(model.graph, "main")
    model.graph.outputs.extend(watcher.values[probe] for probe in probes)
    return probes


class _Watcher:
    """Adds probes to graphs and functions, callees first. Names are numbered, so that none occurs twice in a file."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._functions: dict[ir.Function, list[Probe]] = {}
        self._count = 0
        #: int64 [2] for every probe
        self.values: dict[Probe, ir.Value] = {}

    def graph(self, graph: ir.Graph, scope: str) -> list[Probe]:
        """The probes of the nodes of a graph or a body, as values of it."""
        probes: list[Probe] = []
        for node in list(graph):
            function = self._model.functions.get(node.op_identifier())
            if node.op_type in _BODIES and node.domain in ("", "ai.onnx"):
                probes += self._control_flow(graph, node, scope)
            elif function is not None:
                probes += self._call(node, function)
        return probes

    def _call(self, node: ir.Node, function: ir.Function) -> list[Probe]:
        """The probes of a call are new outputs, after the function's outputs that the call omits."""
        if function not in self._functions:
            probes = self._functions[function] = self.graph(function.graph, function.name)
            function.outputs.extend(self.values[probe] for probe in probes)
        inner = self._functions[function]
        if inner:
            node.resize_outputs(len(function.outputs) - len(inner))
        return [self._output(node, probe.node, probe.op_type) for probe in inner]

    def _control_flow(self, graph: ir.Graph, node: ir.Node, scope: str) -> list[Probe]:
        name = node.name or f"{scope}/{node.outputs[0].name}"
        inside = {body: self.graph(body, name) for body in bodies(node).values()}
        if node.op_type == "If":
            return [self._of_sides(graph, node, name), *self._of_branches(node, inside)]
        ((body, probes),) = inside.items()
        once = self._constant(body, [1, 0])
        inserted = []
        for value, of, op_type in [(once, name, node.op_type), *((self.values[p], p.node, p.op_type) for p in probes)]:
            body.outputs.append(value)
            # of every iteration, stacked
            node.resize_outputs(len(node.outputs) + 1)
            node.outputs[-1].name = self._name()
            total = self._node(graph, "ReduceSum", [node.outputs[-1], self._constant(graph, [0])], keepdims=0)
            inserted.append(self._probe(of, op_type, total))
        for attribute in ("scan_output_axes", "scan_output_directions"):
            if attribute in node.attributes:
                before = node.attributes[attribute].as_ints()
                node.attributes[attribute] = ir.AttrInt64s(attribute, [*before, *[0] * len(inserted)])
        return inserted

    def _of_sides(self, graph: ir.Graph, node: ir.Node, name: str) -> Probe:
        """[1, 0] where an If takes its then branch, else [0, 1]."""
        one = self._constant(graph, [1])
        scalar = self._node(graph, "Cast", [node.inputs[0]], to=int(ir.DataType.INT64))
        then = self._node(graph, "Reshape", [scalar, one])
        sides = self._node(graph, "Concat", [then, self._node(graph, "Sub", [one, then])], axis=0)
        return self._probe(name, "If", sides)

    def _of_branches(self, node: ir.Node, inside: Mapping[ir.Graph, Sequence[Probe]]) -> Iterator[Probe]:
        """The probes in an If's branches; the branch that does not run returns zeros."""
        for branch, probes in inside.items():
            for probe in probes:
                for inner in inside:
                    inner.outputs.append(self.values[probe] if inner is branch else self._constant(inner, [0, 0]))
                yield self._output(node, probe.node, probe.op_type)

    def _output(self, node: ir.Node, of: str, op_type: str) -> Probe:
        """Adds an output to ``node``: the probe of the node named ``of``, inside it."""
        node.resize_outputs(len(node.outputs) + 1)
        node.outputs[-1].name = self._name()
        return self._probe(of, op_type, node.outputs[-1])

    def _probe(self, node: str, op_type: str, value: ir.Value) -> Probe:
        probe = Probe(node, op_type, str(value.name))
        value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([2])
        self.values[probe] = value
        return probe

    def _constant(self, graph: ir.Graph, numbers: Sequence[int]) -> ir.Value:
        return self._node(graph, "Constant", [], value_ints=numbers)

    def _node(self, graph: ir.Graph, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        name = self._name()
        node = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=name)], name=name)
        graph.append(node)
        return node.outputs[0]

    def _name(self) -> str:
        self._count += 1
        return f"{_PROBE}{self._count}"
