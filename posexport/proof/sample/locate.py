"""The first node that computes a wrong value at a stored point.

Intermediate values are not stored. The reference for them is the CPU provider of the same machine without graph
optimisations, if its outputs agree with the sample's float64 outputs; if the CPU provider is wrong too, or does not run
the graph, the reference is onnx's ReferenceEvaluator (NumPy). Imports no torch.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from posexport.base.spec import Interface, PartSpec
from posexport.base.targets.precisions import PRECISIONS
from posexport.base.targets.providers import CPU, provider_named
from posexport.errors import PosexportError
from posexport.graph.protos import scopes
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds
from posexport.proof.proof import Case, Outcome, Proof, Value
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError, Runner, in_calls
from posexport.run.chain import graph_feeds
from posexport.run.providers import LEVELS, bundle_session

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

#: a score beyond it is masked: not compared, since kernels mask with different numbers
_MASKED = 1e29
#: bytes of weights up to which NumPy computes: protobuf cannot hold more, and it would take long
_LARGEST = 1_500_000_000
_NOWHERE = "It could not be located"
#: the prefix of a scope that PyTorch's hooks write where no module is
_NO_MODULE = "_empty_nn_module"

Values = dict[str, Array]
#: from inputs to all values of the graphs, outputs included
Compute = Callable[[Feeds], Values]


@dataclass(frozen=True)
class SampleLocation:
    """The check that names the first wrong node, at the shortest wrong point.

    ``model``: the graph, or the directory of the files of ``parts``. ``options``: arguments of
    `posexport.run.providers.make_session`.
    """

    model: Path
    parts: Sequence[PartSpec] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """Returns ``report`` with ``failure_location``, if a value is wrong."""
        wrong = [value for value in outcome.values if _off(value, outcome)]
        if not wrong:
            return report
        value = min(wrong, key=lambda v: (len(v.point.calls), v.point.length, v.point.padding != "none"))
        allowed = min(outcome.tolerances[w.point.length, w.output] for w in wrong if w.point == value.point)
        try:
            sentence = self._located(proof, value, allowed)
        except (RunError, PosexportError) as err:
            sentence = f"{_NOWHERE}: {err}."
        except ModuleNotFoundError as err:  # a machine that runs bundles need not have onnx
            sentence = f"{_NOWHERE}: taking the graph apart needs {err.name}, which is not installed."
        return msgspec.structs.replace(report, failure_location=sentence)

    def _located(self, proof: Proof, wrong: Value, allowed: float) -> str:
        case = proof.reference.case(wrong.point)
        graphs = [_exposed(file) for file in self._files()]
        provider = provider_named(proof.about.provider)
        subject = partial(self._computed, graphs, provider=provider.name)
        named, right, feeds = self._reference(proof, graphs, case, wrong, allowed)
        values = subject(feeds)
        compared = 0
        for before, graph in enumerate(graphs):
            for node, module in _placed(graph.proto):
                for name in node.output:
                    key = f"{before}/{name}"
                    if key not in right or key not in values:
                        continue
                    compared += 1
                    off = _error(values[key], right[key])
                    if not off <= allowed:
                        return (
                            f"It starts at {_described(node, module)}: off by {off:.1e}, where {allowed:.1e} is "
                            f"allowed; the {compared - 1} values before it are right. Right is what {named}."
                        )
        return self._by_level(proof, case, wrong, allowed, compared)

    def _files(self) -> list[Path]:
        files = [self.model / spec.file for spec in self.parts if spec.when != "later"] or [self.model]
        return list(dict.fromkeys(files))

    def _reference(
        self, proof: Proof, graphs: "Sequence[_Exposed]", case: Case, wrong: Value, allowed: float
    ) -> tuple[str, Values, Feeds]:
        """The name of the reference, its values, and the inputs of the call that is compared: the last of the point."""
        candidates: list[tuple[str, Compute]] = []
        if proof.about.provider != CPU.name:
            candidates.append(
                (
                    "the CPU provider computes here, whose answers agree with the sample's",
                    partial(self._computed, graphs, provider=CPU.name),
                )
            )
        if sum(graph.size for graph in graphs) <= _LARGEST:
            candidates.append(("NumPy computes (onnx.reference)", partial(self._by_numpy, graphs)))
        reasons = []
        for named, compute in candidates:
            try:
                values, feeds = _agreeing(compute, proof.model, case, wrong, allowed)
            except (RunError, PosexportError) as err:
                reasons.append(str(err))
                continue
            if values is not None:
                return named, values, feeds
            reasons.append(f"what {named.partition(',')[0]} is wrong too")
        if PRECISIONS[proof.about.precision].quantized:
            # whether activations are rounded in products of 4 and 8 bits depends on the provider's kernels
            reasons.append(f"the proof of {proof.about.precision} holds for how the CPU provider rounds activations")
        raise PosexportError(f"{'; '.join(reasons) or 'the model is too large'}; verify it with --against SOURCE")

    def _computed(self, graphs: "Sequence[_Exposed]", feeds: Feeds, *, provider: str) -> Values:
        """All values by ``graph number/name``, and the model's outputs by name."""
        options = dict(self.options) if provider != CPU.name else {}

        def run(graph: _Exposed, inputs: Feeds) -> Values:
            names = graph.outputs
            make = partial(
                bundle_session, **options, provider=provider, level="disable", spinning=False, weights=graph.path.parent
            )
            runner = Runner(graph.serialized, inputs=list(inputs), outputs=names, make=make)
            return dict(zip(names, runner(inputs), strict=True))

        return self._whole(graphs, feeds, run)

    def _by_numpy(self, graphs: "Sequence[_Exposed]", feeds: Feeds) -> Values:
        import onnx
        from onnx.reference import ReferenceEvaluator

        def run(graph: _Exposed, inputs: Feeds) -> Values:
            proto = onnx.ModelProto.FromString(graph.serialized)
            onnx.load_external_data_for_model(proto, str(graph.path.parent))
            try:
                results = ReferenceEvaluator(proto).run(None, dict(inputs))
            except Exception as err:  # no common class of exceptions; a missing operator raises too
                raise RunError(f"onnx.reference does not run this graph: {' '.join(str(err).split())[:200]}") from err
            return dict(zip(graph.outputs, map(np.asarray, results), strict=True))

        return self._whole(graphs, feeds, run)

    def _whole(self, graphs: "Sequence[_Exposed]", feeds: Feeds, run: "Callable[[_Exposed, Feeds], Values]") -> Values:
        if not self.parts:
            (graph,) = graphs
            results = run(graph, _typed(graph, feeds))
            return {f"0/{name}": value for name, value in results.items()} | results
        by_path = {graph.path: (number, graph) for number, graph in enumerate(graphs)}
        known, values = dict(feeds), Values()
        for spec in self.parts:
            if spec.when == "later":
                continue
            number, graph = by_path[self.model / spec.file]
            results = run(graph, _typed(graph, graph_feeds(spec.inputs, spec.input_names, known)))
            known |= {whole: results[inner] for inner, whole in spec.output_names.items()}
            values |= {f"{number}/{name}": value for name, value in results.items()}
        return values | {name: array for name, array in known.items() if name not in feeds}

    def _by_level(self, proof: Proof, case: Case, wrong: Value, allowed: float, compared: int) -> str:
        """The lowest optimisation level with a wrong output, if all values are right without optimisations."""
        for level in LEVELS:
            runner = Runner.of(
                proof.model, self.model, self.parts, **self.options, provider=proof.about.provider, level=level
            )
            y = in_calls(runner, case.feeds, proof.model, wrong.point.calls)
            of_output = (pair for pair in zip(case.truths, y, strict=True) if pair[0].output == wrong.output)
            if not all(truth.measure(array).error <= allowed for truth, array in of_output):
                stage = "with its kernels alone" if level == "disable" else f"from level {level} on"
                return (
                    f"All {compared} values are right one by one, the answer is wrong {stage}: at fault is one of ONNX "
                    f"Runtime's graph optimisations for {provider_named(proof.about.provider).label}."
                )
        return f"{_NOWHERE}: all {compared} values are right without optimisations, and so are the answers now."


@dataclass(frozen=True)
class _Exposed:
    """A graph with every value as an output, functions inlined."""

    path: Path
    proto: "ModelProto"
    serialized: bytes
    outputs: list[str]

    @property
    def size(self) -> int:
        """Bytes of the file and its external data."""
        return sum(file.stat().st_size for file in self.path.parent.glob(f"{self.path.name}*"))


def _exposed(path: Path) -> _Exposed:
    import onnx
    from onnx import inliner

    proto = onnx.load(str(path), load_external_data=False)
    proto = inliner.inline_local_functions(proto) if proto.functions else proto
    known = {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        for name in node.output:
            if name and name not in known and node.op_type != "Constant":
                proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return _Exposed(path, proto, proto.SerializeToString(), [value.name for value in proto.graph.output])


def _typed(graph: _Exposed, feeds: Mapping[str, Array]) -> Values:
    """The feeds that are inputs of the graph, cast to its types."""
    import onnx

    types = {value.name: value.type.tensor_type.elem_type for value in graph.proto.graph.input}
    return {
        name: np.asarray(array, dtype=onnx.helper.tensor_dtype_to_np_dtype(types[name]))
        for name, array in feeds.items()
        if name in types
    }


def _agreeing(
    compute: Compute, model: Interface, case: Case, wrong: Value, allowed: float
) -> tuple[Values | None, Feeds]:
    """Values and inputs of the last call; values None if the outputs are wrong here too."""
    last: list[tuple[Feeds, Values]] = []
    names = [spec.name for spec in model.outputs]

    def run(feeds: Feeds) -> list[Array]:
        values = compute(feeds)
        last[:] = [(feeds, values)]
        return [values[name] for name in names]

    outputs = in_calls(run, case.feeds, model, wrong.point.calls)
    ((feeds, values),) = last
    errors = [truth.measure(y).error for truth, y in zip(case.truths, outputs, strict=True)]
    return (values if max(errors) <= allowed else None), feeds


def _off(value: Value, outcome: Outcome) -> bool:
    if value.measured is None:
        return False  # the call failed: its message says why
    return not value.measured.error <= outcome.tolerances[value.point.length, value.output]


def _error(y: Array, right: Array) -> float:
    """max |y - right| / max |right|; for integers and booleans the share of different elements."""
    if y.shape != right.shape:
        return np.inf
    if right.dtype.kind not in "fV":
        return float((y != right).mean()) if right.size else 0.0
    y, right = y.astype(np.float64), right.astype(np.float64)
    masked = (np.abs(right) > _MASKED) & (np.abs(y) > _MASKED) & (np.sign(y) == np.sign(right))
    counts = ~(masked | (np.isnan(y) & np.isnan(right)))
    scale = float(np.abs(right[np.abs(right) <= _MASKED]).max(initial=0.0))
    gap = float(np.abs(y[counts] - right[counts]).max(initial=0.0))
    return gap if not scale else gap / scale


def _placed(model: "ModelProto") -> Iterator[tuple["NodeProto", str]]:
    """Each node with the module that it, or the last node with a scope, was traced in."""
    module = ""
    for node in model.graph.node:
        if inside := [path for path in scopes(node) if not path.startswith(_NO_MODULE)]:
            module = inside[-1]
        yield node, module


def _described(node: "NodeProto", module: str) -> str:
    function = re.match(r"_inlfunc_([A-Za-z]\w*?)_", next(iter(node.output), ""))
    inside = f", in {function[1]}" if function else ""
    where = f", in {module}" if module else ""
    return f"node {node.name or node.output[0]} ({node.op_type}{inside}){where}"
