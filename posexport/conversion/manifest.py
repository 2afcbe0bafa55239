"""The recipe and the manifest of a bundle."""

import contextlib
import datetime
import hashlib
import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from posexport.base.options.recipe import Recipe
from posexport.base.spec import DOMAIN
from posexport.base.targets import kernels
from posexport.base.targets.precisions import FP32
from posexport.base.targets.providers import CPU, DEFAULT_PROVIDER
from posexport.base.targets.target import PORTABLE
from posexport.conversion.options import ConvertOptions
from posexport.proof.report.points import nearest
from posexport.run.bundle.manifest import LoweringSpec, Manifest, PassSpec, PrecisionCost, SourceInfo
from posexport.run.providers import numeric_options
from posexport.version import VERSION

if TYPE_CHECKING:
    import onnx

    from posexport.conversion.export.build import Built
    from posexport.conversion.proof import OnTexts
    from posexport.proof.report.report import Report
    from posexport.sources.source import Source


#: a kernel of ONNX Runtime's for the CPU, in float32
KERNEL = "kernel"
#: the definition that ONNX or ONNX Runtime has of it, in other operators, in float32
FUNCTION = "function"


def computed_by(graphs: Iterable[Path]) -> dict[str, list[str]]:
    """`KERNEL` and `FUNCTION` -> the operators of ``graphs``, in other domains than ONNX's as ``domain::name``.

    Read off the kernel table. The graphs ran, so each operator has a kernel or a definition.
    """
    import onnx

    operators: dict[str, set[str]] = {KERNEL: set(), FUNCTION: set()}
    for path in graphs:
        model = onnx.load(str(path), load_external_data=False)
        opsets = {opset.domain: opset.version for opset in model.opset_import}
        for node in _nodes(model):
            if node.domain != DOMAIN and node.op_type != "Constant":
                known = kernels.rows(CPU.ort_name, node.op_type, node.domain, opsets[node.domain])
                name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
                operators[KERNEL if known else FUNCTION].add(name)
    return {how: sorted(names) for how, names in operators.items() if names}


def _nodes(model: "onnx.ModelProto") -> "Iterator[onnx.NodeProto]":
    left = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while left:
        node = left.pop()
        yield node
        left += [inner for attribute in node.attribute for inner in attribute.g.node]


_TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime-gpu", "onnxruntime", "numpy")


def recipe_of(source: "Source", options: ConvertOptions, opset: int) -> Recipe:
    """The options as they were resolved for ``source``: what its bundle is made by, and what the bundle records."""
    from posexport.sources.settings import parse
    from posexport.sources.static_sizes import sizes_of

    texts = Path(options.calibrate) if options.calibrate is not None and options.reads_texts else None
    resolved = {
        "task": source.task,
        "settings": dict(sorted(parse(options.load.settings).items())),
        "opset": opset,
        "drop_weights": list(options.drop_weights or ()) or msgspec.UNSET,
        "outputs": list(options.outputs or ()) or msgspec.UNSET,
        "static_sizes": sizes_of(options.static_sizes) or msgspec.UNSET,
        "cache_precision": options.cache_precision if options.cache_precision != "model" else msgspec.UNSET,
        "input": options.input if options.input == "embeddings" else msgspec.UNSET,
        "int32": options.int32 or msgspec.UNSET,
        "first_output": options.first_output or msgspec.UNSET,
        # NPUs know no functions
        "inline": options.inline or bool(options.static_sizes),
        "adapter_format": options.adapter_format if options.adapter_format != "stacked" else msgspec.UNSET,
        "adapters": [name for name, _ in options.load.adapters] or msgspec.UNSET,
        "calibrate": texts and hashlib.sha256(texts.read_bytes()).hexdigest(),
    }
    return Recipe(**{**{name: getattr(options, name) for name in Recipe.__struct_fields__}, **resolved})


def _cost(
    built: "Sequence[Built]", recipe: Recipe, report: "Report | None", on_texts: "OnTexts | None"
) -> PrecisionCost | None:
    if recipe.precision == FP32.name:
        return None
    now, before = (sum(graph.weights[index] for graph in built) for index in (0, 1))
    most = None if report is None else nearest(report.range)
    return PrecisionCost(
        weights=now / before if before else 1.0,
        on_grid={} if report is None else report.agreement,
        on_texts=None if on_texts is None else on_texts.agreement,
        range_on_grid=None if most is None else most.largest,
        range_on_texts=None if on_texts is None else on_texts.largest,
    )


def manifest_of(
    source: "Source",
    directory: Path,
    built: "Sequence[Built]",
    recipe: Recipe,
    report: "Report | None",
    on_texts: "OnTexts | None" = None,
) -> Manifest:
    from posexport.proof.report.record import verdict

    # by the report; `proven_on` names the provider that ran
    proven = verdict(report).proven
    return Manifest(
        # in the order of the file's
        **{**source.facts, "outputs": sorted(source.outputs, key=lambda spec: spec.name != recipe.first_output)},
        posexport=VERSION,
        source=SourceInfo(name=source.public_name, kind=source.kind, sha256=source.sha256, revision=source.revision),
        parts=source.part_specs,
        opset=built[0].opset,
        ir_version=built[0].ir_version,
        session_options=_session_options(source, directory, recipe),
        functions=sorted({name for graph in built for name in graph.functions}),
        target=recipe.target,
        precision=recipe.precision,
        precision_by_class={name: words for graph in built for name, words in graph.precision.classes.items()},
        projections=dict(sum((Counter(graph.precision.projections) for graph in built), Counter())),
        cost=_cost(built, recipe, report, on_texts),
        recipe=recipe,
        lowerings=_lowerings(built),
        passes=_passes(built),
        files={},
        tools=_tools() | source.tools,
        parity=None if report is None else report.summary(),
        proven=proven,
        proven_on=[report.provider] if report is not None and proven and not report.emulated else [],
        proven_in_emulation=proven and report is not None and report.emulated,
        emulated=computed_by(directory / file for file in source.graphs)
        if report is not None and report.emulated
        else {},
        checked_lengths=[] if report is None else report.lengths,
        coverage=[] if report is None else report.coverage,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _session_options(source: "Source", directory: Path, recipe: Recipe) -> dict[str, str]:
    """Session options that any graph in ``directory`` needs on its provider."""
    provider = DEFAULT_PROVIDER if recipe.target == PORTABLE else recipe.target
    return {
        name: value
        for file in source.graphs
        for name, value in numeric_options(directory / file, provider=provider).items()
    }


def _lowerings(built: "Sequence[Built]") -> dict[str, LoweringSpec]:
    """What each type of node was lowered to, with the nodes of all graphs."""
    lowerings: dict[str, LoweringSpec] = {}
    for graph in built:
        for name, chosen in graph.chosen.items():
            before = lowerings[name].nodes if name in lowerings else 0
            lowerings[name] = LoweringSpec(
                lowering=chosen.lowering, nodes=before + chosen.nodes, rejected=chosen.rejected
            )
    return lowerings


def _passes(built: "Sequence[Built]") -> dict[str, PassSpec]:
    """What each graph pass did, in all graphs together."""
    # a graph of nothing but weights was not looked through
    names = dict.fromkeys(name for graph in built for name in graph.passes)
    results = {name: [graph.passes[name] for graph in built if name in graph.passes] for name in names}
    return {
        name: PassSpec(
            nodes=sum(result.nodes for result in each),
            rejected=list(dict.fromkeys(reason for result in each for reason in result.rejected)),
            recognised=list(dict.fromkeys(name for result in each for name in result.recognised)),
        )
        for name, each in results.items()
    }


def _tools() -> dict[str, str]:
    """Versions of Python and of the libraries that made the bundle."""
    versions = {"python": platform.python_version()}
    for name in _TOOLS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
