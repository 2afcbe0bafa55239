"""All graph passes, in the order in which they run, by phases."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.targets.target import MICROSOFT, Target
from posexport.errors import PosexportError
from posexport.graph.passes.activations import BiasGelu, Gelu, Softplus, Swish
from posexport.graph.passes.device.equal_batches import EqualBatches
from posexport.graph.passes.device.float32_positions import Float32Positions
from posexport.graph.passes.device.sizes_on_host import SizesOnHost
from posexport.graph.passes.device.slice_sizes import SliceSizes
from posexport.graph.passes.fixed_shape_steps import FixedShapeSteps
from posexport.graph.passes.flat_tokens import FlatTokens
from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult, Phase
from posexport.graph.passes.group_norm import GroupNorm
from posexport.graph.passes.guard.size_guard import SizeGuard
from posexport.graph.passes.in_place_cache import FilledCache, InPlaceCache
from posexport.graph.passes.inline import Inline
from posexport.graph.passes.insert_cache import InsertCache
from posexport.graph.passes.kept_keys import KeptKeys
from posexport.graph.passes.known_tables import KnownTables
from posexport.graph.passes.l2_norm import L2Norm
from posexport.graph.passes.last_logits import LastLogits
from posexport.graph.passes.log_of_sigmoid import LogOfSigmoid
from posexport.graph.passes.names import ControlFlowNames, OutputNames
from posexport.graph.passes.packed_heads import PackedHeads
from posexport.graph.passes.packed_projections import PackedProjections
from posexport.graph.passes.padding.unpadding import Unpadding
from posexport.graph.passes.recognise.attention_by_hand import AttentionByHand
from posexport.graph.passes.recognise.distance_bias import DistanceBias
from posexport.graph.passes.recognise.encoder_states import EncoderStates
from posexport.graph.passes.recognise.mask_structure import MaskStructure
from posexport.graph.passes.recognise.position_bias import PositionBias
from posexport.graph.passes.recognise.recognition import share_equal_nodes
from posexport.graph.passes.recognise.repeated_heads import GroupedHeads
from posexport.graph.passes.recognise.rotary_by_hand import Rotary
from posexport.graph.passes.recognise.rotary_embedding import RotaryEmbeddings
from posexport.graph.passes.rms_norm import RmsNorm
from posexport.graph.passes.routed_experts import RoutedExperts
from posexport.graph.passes.separate_projections import SeparateProjections
from posexport.graph.passes.shared_bias import SharedBias
from posexport.graph.passes.skip_norm import SkipNorm
from posexport.graph.passes.split_weights import SplitWeights
from posexport.graph.passes.static_sizes import StaticSizes
from posexport.graph.passes.tabulated_projection import TabulatedProjection
from posexport.graph.passes.tied_head import TiedHead
from posexport.graph.passes.wide_dft import WideDft

PASSES: tuple[GraphPass, ...] = (
    # recognise: what the tracer and onnxscript's optimiser wrote otherwise, then users' operators; no later pass knows
    # who wrote an attention node. Rotations first, as attention reads what they return
    EncoderStates(),
    RotaryEmbeddings(),
    Rotary(),
    AttentionByHand(),
    GroupedHeads(),
    PositionBias(),
    DistanceBias(),
    MaskStructure(),
    # cache: of a decoder that was traced without one
    InsertCache(),
    # optimise: one node for each activation and normalisation, which later passes look for
    Gelu(),
    Swish(),
    Softplus(),
    RmsNorm(),
    L2Norm(),
    GroupNorm(),
    LogOfSigmoid(),
    WideDft(),
    RoutedExperts(),
    # before products become Gemm
    SplitWeights(),
    SeparateProjections(),
    PackedProjections(),
    # after normalisations, which are one node, and before rows of all tokens are one matrix
    LastLogits(),
    FlatTokens(),
    SkipNorm(),
    BiasGelu(),
    # nodes of attention. The cache first: a node that appends to its cache may still take packed heads and a bias
    InPlaceCache(),
    FilledCache(),
    FixedShapeSteps(),
    TabulatedProjection(),
    KnownTables(),
    PackedHeads(),
    # it compares what all nodes add to their scores, so it runs after passes that change that
    SharedBias(),
    # for attention with packed heads and no bias
    KeptKeys(),
    # padding: after all passes that look for attention, as it puts attention into branches
    Unpadding(),
    # guard: after the exporter's optimiser and all passes that could move or drop it
    OutputNames(),
    SizeGuard(),
    # device: functions have bodies
    EqualBatches(),
    SliceSizes(),
    SizesOnHost(),
    # nothing looks for products any more
    TiedHead(),
    Inline(),
    # of inlined bodies too
    Float32Positions(),
    StaticSizes(),
    # name: nothing is added any more
    ControlFlowNames(),
)
#: phases of the graph as it was traced, and of the graph with the inputs that ship
OF_TRACE: tuple[Phase, ...] = ("recognise", "cache")
OF_GRAPH: tuple[Phase, ...] = ("optimise", "padding", "guard")
#: phases before and after lowerings are chosen (`posexport.graph.lowering.functions`)
BEFORE_LOWERING: tuple[Phase, ...] = (*OF_TRACE, *OF_GRAPH)
AFTER_LOWERING: tuple[Phase, ...] = ("device", "name")


def run(
    model: ir.Model,
    context: Context,
    phases: Sequence[Phase] = BEFORE_LOWERING,
    *,
    only: Collection[str] | None = None,
    requested: Collection[str] = (),
    without: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, PassResult]:
    """Run the passes of ``phases`` on a graph: name of each pass -> what it did, or why not.

    ``only``: these passes, also where they are not preferred. ``requested``: these among others, likewise. ``without``:
    passes that are left out, each with the reason.

    Raises:
        PosexportError: a name in ``only`` or ``requested`` is unknown, or that pass refuses the target.
    """
    _check((*(only or ()), *requested), context.target)
    results = {}
    for graph_pass in PASSES:
        if (
            graph_pass.phase not in phases
            or not graph_pass.concerns(context)
            or (only is not None and graph_pass.name not in only)
        ):
            continue
        reason = without.get(graph_pass.name)
        if reason is None and only is None and graph_pass.name not in requested:
            reason = why_left_out(graph_pass, context.target, context.lowering)
        result = PassResult(rejected=(reason,)) if reason else graph_pass.apply(model, context)
        if result.nodes and graph_pass.writes_copies:
            share_equal_nodes(model)
        elif result.nodes:
            # the next pass asks for the only reader of a value
            RemoveUnusedNodesPass()(model)
        # why a pass is left out is of interest where there is something that it could change
        if graph_pass.is_listed_idle or result.nodes or (result.rejected and reason is None):
            results[graph_pass.name] = result
    if any(result.nodes for result in results.values()):
        _name_nodes(model)
    if any(node.domain == MICROSOFT for node in model.graph):
        model.opset_imports.setdefault(MICROSOFT, 1)
    return results


def why_left_out(graph_pass: GraphPass, target: Target, lowering: str = "auto") -> str | None:
    """Why `run` does not apply a pass for ``target``; None where it does."""
    if graph_pass.prepares is not None and lowering not in ("auto", graph_pass.prepares):
        return f"it prepares for --lowering {graph_pass.prepares}, {lowering} was asked for"
    return graph_pass.refusal(target) or graph_pass.why_not_preferred(target)


def _check(names: Collection[str], target: Target) -> None:
    known = {graph_pass.name: graph_pass for graph_pass in PASSES}
    for name in names:
        if name not in known:
            raise PosexportError(f"unknown graph pass {name!r}; known: {', '.join(known)}")
        reason = known[name].refusal(target)
        if reason:
            raise PosexportError(f"graph pass {name} does not apply: {reason}; leave it out")


def _name_nodes(model: ir.Model) -> None:
    """A name for every node that has none: after its first output."""
    names = {node.name for node in model.graph}
    for node in model.graph:
        if not node.name:
            name = f"{node.op_type}_{node.outputs[0].name}"
            while name in names:
                name += "_"
            node.name = name
            names.add(name)
