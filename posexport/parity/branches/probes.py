"""Which branches of a graph run: copies of its graphs that also say it, and sessions that remember what they said.

A branch is one side of an If, or the body of a Scan or a Loop, in the main graph or in a function. How often each ran
becomes an output of everything around it; loops add up what their iterations say, so that a loop in a loop may have
another number of them each time. Imports no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posexport.parity.subjects.runner import Runner
from posexport.runtime.providers import bundle_session
from posexport.runtime.wrapped_session import WrappedSession
from posexport.spec import PartSpec
from posexport.targets.providers import DEFAULT_PROVIDER

if TYPE_CHECKING:
    from collections.abc import MutableSequence

    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

#: begins the names of what is added
_PROBE = "posexport_branch/"
#: the attributes that hold bodies; an If has two, of which one runs
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
        """(node, body) of what ran, ``values`` being the array's."""
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
        import onnx

        if isinstance(model, bytes):
            proto, weights = onnx.ModelProto.FromString(model), None
        else:
            proto, weights = onnx.load(str(model), load_external_data=False), model.parent
        part = "" if whole or isinstance(model, bytes) else model.name
        probes = watch(proto)
        self.branches |= {Branch(probe.node, body, part) for probe in probes for body in _BODIES[probe.op_type]}
        session = bundle_session(
            proto.SerializeToString(), provider=provider, threads=threads, spinning=False, weights=weights
        )

        return _WatchedSession(session, probes, part, self.ran)


class _WatchedSession(WrappedSession):
    """A session that answers as the original graph's would, and adds what ran to ``ran``."""

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


def watch(model: "ModelProto") -> list[Probe]:
    """Add outputs that say which branches ran, in place; answers what they are called."""
    functions = {(function.domain, function.name): function for function in model.functions}
    watched: dict[tuple[str, str], list[Probe]] = {}
    probes = _Watcher(functions, watched).graph(model.graph.node, "main")
    for probe in probes:
        model.graph.output.append(_value_info(probe.value))
    return probes


class _Watcher:
    """Adds probes to lists of nodes, callees first. Names are numbered, so that none occurs twice in a file."""

    def __init__(
        self,
        functions: Mapping[tuple[str, str], "FunctionProto"],
        watched: dict[tuple[str, str], list[Probe]],
    ) -> None:
        self._functions, self._watched = functions, watched
        self._count = 0

    def graph(self, nodes: "MutableSequence[NodeProto]", scope: str) -> list[Probe]:
        """The probes that nodes of one scope can give."""
        probes: list[Probe] = []
        for node in list(nodes):
            if node.op_type in _BODIES and node.domain in ("", "ai.onnx"):
                probes += self._control_flow(nodes, node, scope)
            elif (node.domain, node.op_type) in self._functions:
                probes += self._call(node)
        return probes

    def _function(self, key: tuple[str, str]) -> list[Probe]:
        if key not in self._watched:
            function = self._functions[key]
            self._watched[key] = self.graph(function.node, function.name)
            function.output.extend(probe.value for probe in self._watched[key])
        return self._watched[key]

    def _call(self, node: "NodeProto") -> list[Probe]:
        probes = [Probe(p.node, p.op_type, self._name()) for p in self._function((node.domain, node.op_type))]
        if probes:
            declared = self._functions[node.domain, node.op_type].output
            # outputs that the call leaves out at the end keep their places
            node.output.extend([""] * (len(declared) - len(probes) - len(node.output)))
        node.output.extend(probe.value for probe in probes)
        return probes

    def _control_flow(self, nodes: "MutableSequence[NodeProto]", node: "NodeProto", scope: str) -> list[Probe]:
        own = node.name or f"{scope}/{node.output[0]}"
        graphs = {
            attribute.name: attribute.g for attribute in node.attribute if attribute.name in _BODIES[node.op_type]
        }
        inner = {name: self.graph(graph.node, own) for name, graph in graphs.items()}
        if node.op_type == "If":
            taken = self._name()
            nodes.extend(_sides(node.input[0], taken))
            return [Probe(own, "If", taken), *self._either(node, graphs, inner)]
        (graph,) = graphs.values()
        (probes,) = inner.values()
        once = self._name()
        graph.node.append(_node("Constant", [], once, value_ints=[1, 0]))
        found = []
        for value, probe in [(once, None), *((probe.value, probe) for probe in probes)]:
            graph.output.append(_value_info(value))
            stacked, total = self._name(), self._name()
            node.output.append(stacked)
            nodes.append(_node("Constant", [], f"{total}/iterations", value_ints=[0]))
            nodes.append(_node("ReduceSum", [stacked, f"{total}/iterations"], total, keepdims=0))
            found.append(Probe(own, node.op_type, total) if probe is None else Probe(probe.node, probe.op_type, total))
        for attribute in node.attribute:
            if attribute.name in ("scan_output_axes", "scan_output_directions"):
                attribute.ints.extend([0] * len(found))
        return found

    def _either(
        self, node: "NodeProto", graphs: Mapping[str, "GraphProto"], inner: Mapping[str, Sequence[Probe]]
    ) -> Iterator[Probe]:
        """The probes of an If's branches: the branch that is not taken gives zeros."""
        for name, probes in inner.items():
            for probe in probes:
                outside = self._name()
                node.output.append(outside)
                for branch, graph in graphs.items():
                    value = probe.value
                    if branch != name:
                        value = self._name()
                        graph.node.append(_node("Constant", [], value, value_ints=[0, 0]))
                    graph.output.append(_value_info(value))
                yield Probe(probe.node, probe.op_type, outside)

    def _name(self) -> str:
        self._count += 1
        return f"{_PROBE}{self._count}"


def _sides(condition: str, to: str) -> list["NodeProto"]:
    """Nodes that give ``to``: [1, 0] where an If takes its then branch, else [0, 1]."""
    one, scalar, then, orelse = (f"{to}/{name}" for name in ("one", "scalar", "then", "else"))
    return [
        _node("Constant", [], one, value_ints=[1]),
        _node("Cast", [condition], scalar, to=7),
        _node("Reshape", [scalar, one], then),
        _node("Sub", [one, then], orelse),
        _node("Concat", [then, orelse], to, axis=0),
    ]


def _node(op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> "NodeProto":
    from onnx import helper

    return helper.make_node(op_type, list(inputs), [output], name=output, **attributes)


def _value_info(name: str) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.INT64, [2])
