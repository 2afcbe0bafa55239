"""The values of modules and softmaxes in the ONNX graph, as additional outputs. Imports no torch.

They are found by the module path of each node, which `torch.onnx.export` writes into its ``metadata_props``.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from posexport.graph.protos import bodies
from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds
from posexport.parity.subjects.runner import Runner
from posexport.runtime.chain import graph_feeds
from posexport.spec import PartSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_SCOPES = "pkg.torch.onnx.name_scopes"
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

    models: list["ModelProto"]
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


def _run(model: "ModelProto", feeds: Feeds, provider: str, threads: int) -> dict[str, Array]:
    names = [value.name for value in model.graph.output]
    runner = Runner(
        model.SerializeToString(),
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


def _softmaxes(graph: "GraphProto") -> Iterator[tuple[str, str]]:
    """Input and output of each Softmax; inside a Scan over blocks of queries, or an If, they become outputs of that."""
    for node in graph.node:
        if node.op_type == "Softmax":
            yield node.input[0], node.output[0]
        # of an If the same softmax by two ways
        for number, ways in enumerate(zip(*map(list, map(_softmaxes, bodies(node))), strict=False)):
            for body, names in zip(bodies(node), ways, strict=True):
                _give(body, names)
            outside = [f"{_BLOCKS}{node.output[0]}/{place}/{number}" for place in ("entering", "leaving")]
            node.output.extend(outside)
            yield outside[0], outside[1]


def _give(body: "GraphProto", names: Sequence[str]) -> None:
    """Makes values outputs of a body, also values that it only reads."""
    import onnx

    produced = {name for node in body.node for name in node.output}
    for name in names:
        output = name if name in produced else f"{_BLOCKS}{name}/given"
        if output != name:
            body.node.append(onnx.helper.make_node("Identity", [name], [output]))
        body.output.append(onnx.ValueInfoProto(name=output))


def scopes(node: "NodeProto") -> list[str]:
    """Paths of the modules that the node was traced in, outermost first; empty where it does not say."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            try:
                paths = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                return []
            return [str(path) for path in paths[:-1] if path] if isinstance(paths, list) else []
    return []


def expose(models: Sequence["ModelProto"], parts: Sequence[PartSpec] = ()) -> Exposed:
    """Copies of ``models`` with their functions inlined that also give what enters and leaves each module."""
    copies = [_exposed(model) for model in models]
    segments: dict[str, list[Segment]] = defaultdict(list)
    softmaxes: list[tuple[str, str]] = []
    for number, (_, calls_of, pairs) in enumerate(copies):
        before = f"{number}/" if parts else ""
        softmaxes += [(before + first, before + second) for first, second in pairs]
        for path, calls in calls_of.items():
            named = [([before + n for n in call.entering], [before + n for n in call.made]) for call in calls]
            segments[path] += [Segment(entering, leaving) for entering, leaving in named]
    return Exposed([model for model, _, _ in copies], list(parts), dict(segments), softmaxes)


def _exposed(model: "ModelProto") -> tuple["ModelProto", dict[str, list[Segment]], list[tuple[str, str]]]:
    """One copy, its segments and its softmaxes."""
    import onnx
    from onnx import inliner

    model = (
        inliner.inline_local_functions(model)
        if model.functions
        else onnx.ModelProto.FromString(model.SerializeToString())
    )
    graph = model.graph
    constant = {tensor.name for tensor in graph.initializer} | {""}
    constant |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    segments: dict[str, list[Segment]] = defaultdict(list)
    current: set[str] = set()
    for node in graph.node:
        inside = scopes(node)
        if not inside:
            continue  # a node without a path (from a function's body, from an optimiser) interrupts nothing
        for path in inside:
            if path not in current:
                segments[path].append(Segment())
            segment = segments[path][-1]
            segment.entering += [name for name in node.input if name not in constant and name not in segment.made]
            segment.made += node.output
        current = set(inside)
    softmaxes = list(_softmaxes(graph))
    exposed = {name for pair in softmaxes for name in pair}
    exposed |= {name for calls in segments.values() for s in calls for name in (*s.entering, *s.leaving)}
    known = {value.name for value in (*graph.output, *graph.input)} | constant
    for name in sorted(exposed - known):
        graph.output.append(onnx.ValueInfoProto(name=name))
    return model, dict(segments), softmaxes
