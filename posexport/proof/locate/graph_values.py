"""The values of modules and softmaxes in the ONNX graph, as additional outputs. Imports no torch.

They are identified by the module path of each node, which `torch.onnx.export` writes into its ``metadata_props``.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from posexport.base.spec import PartSpec
from posexport.graph.protos import SCOPES, module_paths
from posexport.graph.queries import bodies
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds
from posexport.proof.subjects.runner import Runner
from posexport.run.chain import graph_feeds

#: how many of a call's last nodes may compute its output (a cast or a reshape may follow)
_LAST = 4
#: begins the names of values that come in blocks of queries
_BLOCKS = "posexport_blocks/"


@dataclass
class Segment:
    """The nodes of one call of a module: names of the values that enter it, and that it computes."""

    entering: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    @property
    def leaving(self) -> list[str]:
        """The candidates for the call's output, the last first."""
        return self.made[-1 : -1 - _LAST : -1]


@dataclass(frozen=True)
class Exposed:
    """Graphs with more outputs. ``segments``: by module path, in order of calls. ``softmaxes``: (input, output).

    Of several graphs (``parts``) names of values begin with the graph's number.
    """

    models: list[ir.Model]
    parts: list[PartSpec]
    segments: dict[str, list[Segment]]
    softmaxes: list[tuple[str, str]]

    def run(self, feeds: Feeds, *, provider: str, threads: int) -> dict[str, Array]:
        """Every exposed value by name, computed without ONNX Runtime's graph optimisations; RunError as usual."""
        if not self.parts:
            return _run(self.models[0], feeds, provider, threads)
        known, values = dict(feeds), dict[str, Array]()
        for number, (model, part) in enumerate(zip(self.models, self.parts, strict=True)):
            part_feeds = graph_feeds(part.inputs, part.input_names, known)
            outputs = _run(model, part_feeds, provider, threads)
            known |= {whole: outputs[inner] for inner, whole in part.output_names.items()}
            values |= {f"{number}/{name}": value for name, value in outputs.items()}
        return values


def _run(model: ir.Model, feeds: Feeds, provider: str, threads: int) -> dict[str, Array]:
    names = [_name(value) for value in model.graph.outputs]
    runner = Runner(
        ir.to_proto(model).SerializeToString(),
        inputs=list(feeds),
        outputs=names,
        provider=provider,
        threads=threads,
        level="disable",
    )
    outputs = dict(zip(names, runner(feeds), strict=True))
    for name in outputs:
        if name.startswith(_BLOCKS) and outputs[name].ndim == 5:
            blocks = np.moveaxis(outputs[name], 0, 2)  # [B, H, blocks, queries of one, S]
            outputs[name] = blocks.reshape(*blocks.shape[:2], -1, blocks.shape[-1])
    return outputs


def _softmaxes(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Input and output of each Softmax; inside a Scan over blocks of queries, or an If, they become outputs of that."""
    for node in list(graph):
        if node.op_type == "Softmax":
            yield _name(node.inputs[0]), _name(node.outputs[0])
        every = list(bodies(node).values())
        # the branches of an If have the same softmax, computed in two ways
        for number, ways in enumerate(zip(*map(list, map(_softmaxes, every)), strict=False)):
            for body, names in zip(every, ways, strict=True):
                _give(body, names)
            outside = [f"{_BLOCKS}{node.outputs[0].name}/{place}/{number}" for place in ("entering", "leaving")]
            node.resize_outputs(len(node.outputs) + 2)
            for value, name in zip(node.outputs[-2:], outside, strict=True):
                value.name = name
            yield outside[0], outside[1]


def _give(body: ir.Graph, names: Sequence[str]) -> None:
    """Makes values outputs of a body, also values that it only reads."""
    values = {value.name: value for node in body for value in (*node.inputs, *node.outputs) if value is not None}
    for name in names:
        value = values[name]
        if value.graph is not body:
            identity = ir.node("Identity", [value], outputs=[ir.Value(name=f"{_BLOCKS}{name}/passed")])
            body.append(identity)
            value = identity.outputs[0]
        body.outputs.append(value)


def expose(models: Sequence[ir.Model], parts: Sequence[PartSpec] = ()) -> Exposed:
    """Changes ``models``: functions are inlined, and what enters and leaves each module becomes an output."""
    segments: dict[str, list[Segment]] = defaultdict(list)
    softmaxes: list[tuple[str, str]] = []
    for number, model in enumerate(models):
        calls_of, pairs = _exposed(model)
        before = f"{number}/" if parts else ""
        softmaxes += [(before + first, before + second) for first, second in pairs]
        for path, calls in calls_of.items():
            named = [([before + n for n in call.entering], [before + n for n in call.made]) for call in calls]
            segments[path] += [Segment(entering, leaving) for entering, leaving in named]
    return Exposed(list(models), list(parts), dict(segments), softmaxes)


def _exposed(model: ir.Model) -> tuple[dict[str, list[Segment]], list[tuple[str, str]]]:
    """The segments and the softmaxes of one model, which gets them as outputs."""
    InlinePass()(model)
    graph = model.graph
    constants = {value.name for value in graph.initializers.values()}
    constants |= {node.outputs[0].name for node in graph if node.op_type == "Constant"}
    segments: dict[str, list[Segment]] = defaultdict(list)
    current: set[str] = set()
    for node in graph:
        inside = module_paths(node.metadata_props.get(SCOPES, ""))
        if not inside:
            continue  # a node without a path (from a function's body, from an optimiser) interrupts nothing
        entering = [name for value in node.inputs if (name := _name(value)) and name not in constants]
        for path in inside:
            if path not in current:
                segments[path].append(Segment())
            segment = segments[path][-1]
            segment.entering += [name for name in entering if name not in segment.made]
            segment.made += map(_name, node.outputs)
        current = set(inside)
    softmaxes = list(_softmaxes(graph))
    values = {value.name: value for node in graph for value in node.outputs}
    exposed = {name for pair in softmaxes for name in pair}
    exposed |= {name for calls in segments.values() for s in calls for name in (*s.entering, *s.leaving)}
    known = {value.name for value in (*graph.outputs, *graph.inputs)} | constants
    graph.outputs.extend(values[name] for name in sorted(exposed - known) if name in values)
    return dict(segments), softmaxes


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""
