"""Every lowering of every encoding against the definition in float64: around the edges of a block, padded, in calls."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from posexport.base.targets.target import Target
from posexport.catalogue.stored import catalogue
from posexport.conversion.export.save import save
from posexport.errors import PosexportError
from posexport.graph.lowering import bias, functions
from posexport.graph.lowering.blocks import BLOCK
from posexport.graph.lowering.lowering import function
from posexport.graph.lowering.plan import ATTENTION, choose
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import Context
from posexport.proof.criterion import measure, tolerance
from posexport.proof.grid.inputs import draw, token_mask
from posexport.proof.grid.point import GridPoint
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.subjects.runner import Runner, in_calls
from posexport.run.providers import make_session
from posexport.sources import builtin
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from tests.small import by_attention, in_short, shared
from tests.tolerances import agree
from tests.traces import Traces

MODELS = [row["name"] for row in catalogue("models")]
LENGTHS = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1)
WHOLE = ("formula", "blockwise", "attention", "multi-head")


def source(name: str, *settings: str) -> Source:
    """With a table that holds the lengths, where there is one."""
    return builtin.builtin_source(name, task=None, settings_given=shared(name, *settings))


class Lowered:
    """A model traced once, to be lowered in several ways and compared with its definition."""

    def __init__(self, made: Source, opset: int, traces: Traces) -> None:
        self.source, self.opset, self.traces = made, opset, traces
        self.model = traces(made, opset)
        self.references = [
            PrecisionCopy(made.module, dtype, outputs=len(made.outputs)) for dtype in (torch.float64, torch.float32)
        ]
        self.known: dict[tuple[GridPoint, tuple[int, ...]], list[list[np.ndarray[Any, Any]]]] = {}

    def check(self, path: Path, lowering: str, points: Sequence[tuple[GridPoint, tuple[int, ...]]]) -> set[str]:
        """Which lowerings its attention got; fails where a point misses the criterion."""
        opset = opset_of(lowering, self.opset)
        model = self.traces(self.source, opset)
        model.ir_version = 10
        target = Target("cpu", opset)
        pipeline.run(model, Context(target, lowering))
        chosen = functions.attach(model, target, lowering)
        save(model, path)
        names = [[spec.name for spec in specs] for specs in (self.source.inputs, self.source.outputs)]
        runner = Runner(path, inputs=names[0], outputs=names[1], threads=1)
        inputs, outputs = self.source.inputs, self.source.outputs
        for point, calls in points:
            if (point, calls) not in self.known:
                feeds = draw(point, inputs)
                self.known[point, calls] = [in_calls(each, feeds, self.source, calls) for each in self.references]
        for point, calls in points:
            feeds = draw(point, inputs)
            truth = self.known[point, calls][0]
            got = in_calls(runner, feeds, self.source, calls)
            error = measure(got[0], truth[0], outputs[0].axes, token_mask(point, inputs)).error
            allowed = tolerance("fp32", outputs[0].name, self.baseline(point.length))
            assert error <= allowed, f"{lowering}, {point}, {calls}: {error:.2g} exceeds {allowed:.2g}"
        return {choice.lowering for choice in chosen.values() if isinstance(choice.spec, AttentionSpec)}

    def baseline(self, length: int) -> float:
        """PyTorch's largest error in float32 over the points of a length, as in the proof."""
        axes = self.source.outputs[0].axes
        return max(
            measure(known[1][0], known[0][0], axes, token_mask(point, self.source.inputs)).error
            for (point, _), known in self.known.items()
            if point.length == length
        )


ENCODERS = [name for name in MODELS if name.startswith("encoder-") and not name.startswith("encoder-decoder")]
#: with a bias by distance, as encoder-alibi; of a network
LARGE_BIASES = ("t5", "kerple", "sandwich", "fire")
DECODERS = [name for name in MODELS if name.startswith("decoder-")]
#: without padding: keys in whole chunks, and keys that have to be filled up
WHOLE_BLOCKS = (GridPoint(batch=2, length=192, padding="none"), ())
FILLED_BLOCKS = (GridPoint(batch=2, length=161, padding="none"), ())
PADDED = [(GridPoint(batch=3, length=n, padding="ragged" if n > 2 else "none"), ()) for n in LENGTHS]
PADDED += [WHOLE_BLOCKS, FILLED_BLOCKS]
LEFT = [(GridPoint(batch=2, length=n, padding="left" if n > 2 else "none"), ()) for n in LENGTHS]
#: prompts in parts and steps, over the edge of a block
CALLS = [
    (GridPoint(batch=2, length=sum(calls), padding="left"), calls)
    for calls in ((BLOCK - 1, 1, 1), (5, BLOCK), (1, BLOCK + 1), (BLOCK + 1, 2))
]
CALLS += [WHOLE_BLOCKS, FILLED_BLOCKS]
#: of these, what the short run takes: one token, a block and one more, whole blocks and filled ones, calls over an edge
FEW_PADDED = [PADDED[0], *PADDED[4:]]
FEW_CALLS = [LEFT[0], LEFT[4], CALLS[0], CALLS[2], *CALLS[4:]]
#: what the short run lowers: no term, a bias by distance, scores from queries and keys, with values, two terms, scores
#: with a bias of queries, and gates
LOWERED = tuple(
    f"encoder-{name}"
    for name in ("absolute", "alibi", "relative-key-query", "nezha", "deberta", "transformer-xl", "wavlm-gated")
)
#: whose calls it cuts too: a bias, scores from keys, contextual positions
CALLED = ("decoder-alibi", "decoder-shaw-k", "decoder-cope")
#: whose graph of opset 23 the short run makes too
WITH_OPERATOR = ("encoder-absolute", "encoder-alibi", "decoder-rope", "decoder-alibi")


def opset_of(lowering: str, opset: int) -> int:
    """The operator Attention is of opset 23."""
    return max(opset, 23) if lowering == "attention" else opset


def applies(made: Lowered, lowering: str) -> bool:
    """Whether all attention of a model can be lowered so; PosexportError is the planner's answer where not."""
    target = Target("cpu", opset_of(lowering, made.opset))
    specs = {AttentionSpec.of(node) for node in ir.traversal.RecursiveGraphIterator(made.model.graph)} - {None}
    way = next(each for each in ATTENTION.lowerings if each.name == lowering)
    return all(way.refusal(spec, target) is None for spec in specs)


def check_every(
    made: Lowered, folder: Path, points: Sequence[tuple[GridPoint, tuple[int, ...]]], lowerings: Sequence[str] = WHOLE
) -> set[str]:
    """Every lowering that applies, at all points; the others say why not."""
    took = set()
    for lowering in lowerings:
        if applies(made, lowering):
            assert made.check(folder / f"{lowering}.onnx", lowering, points) == {lowering}
            took.add(lowering)
        else:
            with pytest.raises(PosexportError, match=f"lowering {lowering} does not apply to .*: .*; use --lowering"):
                made.check(folder / "x.onnx", lowering, points)
    return took


def without_operator(name: str) -> list[str]:
    """The lowerings, that by the operator of opset 23 for a few models only: it needs a second trace."""
    return [lowering for lowering in WHOLE if lowering != "attention" or name in WITH_OPERATOR]


@pytest.mark.all(but=("encoder-nezha",))
@pytest.mark.parametrize("name", in_short(by_attention("encoder-"), LOWERED.__contains__))
def test_every_lowering_of_an_encoder(name: str, tmp_path: Path, traces: Traces) -> None:
    took = check_every(Lowered(source(name), 18, traces), tmp_path, FEW_PADDED, without_operator(name))
    assert {"formula", "blockwise"} <= took


@pytest.mark.all
@pytest.mark.parametrize("name", ENCODERS)
def test_every_lowering_of_every_encoder(name: str, tmp_path: Path, traces: Traces) -> None:
    assert {"formula", "blockwise"} <= check_every(Lowered(source(name), 23, traces), tmp_path, PADDED)


@pytest.mark.parametrize(
    "name",
    ["encoder-alibi", *(pytest.param(f"encoder-{n}", marks=pytest.mark.all) for n in LARGE_BIASES)],
)
def test_biases_too_large_to_be_shared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    monkeypatch.setattr(bias, "MAX_SHARED_BIAS_ELEMENTS", 0)
    made = Lowered(source(name), 18, traces)
    assert made.check(tmp_path / "m.onnx", "blockwise", PADDED) == {"blockwise"}


@pytest.mark.all(but=("decoder-cope",))
@pytest.mark.parametrize("name", in_short(by_attention("decoder-"), CALLED.__contains__))
def test_every_lowering_of_a_decoder(name: str, tmp_path: Path, traces: Traces) -> None:
    check_every(Lowered(source(name), 18, traces), tmp_path, FEW_CALLS, without_operator(name))


@pytest.mark.all
@pytest.mark.parametrize("name", DECODERS)
def test_every_lowering_of_every_decoder(name: str, tmp_path: Path, traces: Traces) -> None:
    check_every(Lowered(source(name), 23, traces), tmp_path, [*LEFT, *CALLS])


def check_static(
    made: Source, folder: Path, traces: Traces, points: Sequence[tuple[GridPoint, tuple[int, ...]]]
) -> None:
    """GroupQueryAttention wherever nothing but a bias acts on the scores, and nowhere else."""
    lowered = Lowered(with_kv_cache(made, "static", "at-write"), 24, traces)
    took = lowered.check(folder / "m.onnx", "auto", points)
    spec = next(spec for node in lowered.model.graph if (spec := AttentionSpec.of(node)) is not None)
    reads_keys = spec.score_operator is not None and "k" in spec.score_operator.takes
    if not (reads_keys or spec.base or spec.values):
        assert took == {"group-query"}
        assert "GroupQueryAttention" in onnx.load(folder / "m.onnx").SerializeToString().decode("latin-1")
    else:
        assert "group-query" not in took


#: kinds of attention that GroupQueryAttention takes, and one for each reason why it does not
STATIC = ("rope", "alibi", "relative-key", "relative-key-query", "cope", "nezha")
#: in the short run, one that it takes and one that it does not
STATIC_IN_SHORT = ("rope", "relative-key-query")


@pytest.mark.all(but=("decoder-rope",))
@pytest.mark.parametrize(
    "name", [pytest.param(f"decoder-{n}", marks=() if n in STATIC_IN_SHORT else pytest.mark.all) for n in STATIC]
)
def test_every_lowering_of_a_cache_of_fixed_size(name: str, tmp_path: Path, traces: Traces) -> None:
    check_static(source(name), tmp_path, traces, FEW_CALLS)


@pytest.mark.all
@pytest.mark.parametrize("name", DECODERS)
def test_every_cache_of_fixed_size(name: str, tmp_path: Path, traces: Traces) -> None:
    check_static(source(name), tmp_path, traces, [*LEFT, *CALLS])


@pytest.mark.all
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "decoder-alibi" else pytest.mark.all) for name in DECODERS]
)
def test_a_cache_of_fixed_size_for_every_head(name: str, tmp_path: Path, traces: Traces) -> None:
    check_static(source(name, *(() if "head" in name else ("kv_heads=5",))), tmp_path, traces, [*LEFT, *CALLS])


def test_a_step_of_many_heads_that_share_keys(tmp_path: Path, traces: Traces) -> None:
    settings = ("layers=1", "hidden=80", "heads=10", "kv_heads=2", "vocab=61")
    made = builtin.builtin_source("decoder-rope", task=None, settings_given=settings)
    check_static(made, tmp_path, traces, FEW_CALLS)


@pytest.mark.all
def test_a_head_of_an_odd_size_is_refused_to_the_operator(tmp_path: Path, traces: Traces) -> None:
    made = builtin.builtin_source(
        "decoder-rope", task=None, settings_given=("layers=1", "hidden=20", "heads=5", "vocab=61")
    )
    lowered = Lowered(with_kv_cache(made, "static", "at-write"), 24, traces)
    assert lowered.check(tmp_path / "m.onnx", "auto", CALLS[:1]) == {"static"}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("heads", [1, 5])
@pytest.mark.parametrize("lowering", ["formula", "attention"])
def test_a_mask_with_a_row_for_every_query(lowering: str, heads: int, rows: int) -> None:
    spec, target = AttentionSpec(mask="pairs", causal=True), Target("cpu", 23)
    rng = np.random.default_rng(4)
    T, S, lowest = BLOCK + 9, BLOCK + 14, -1e30
    fed: dict[str, np.ndarray[Any, Any]] = {
        name: rng.standard_normal((3, 5, length, 4)).astype("f") for name, length in zip("qkv", (T, S, S), strict=True)
    }
    fed["mask"] = np.where(rng.random((rows, heads, T, S)) < 0.3, lowest, rng.standard_normal((1, 1, 1, S))).astype("f")
    fed |= {"qpos": np.arange(5, 5 + T), "kpos": np.arange(S)}
    body = ir.serde.serialize_function(
        function(choose(ATTENTION, spec, target, lowering).lowering, spec, target).function
    )
    values = {"scale": 0.5, "lowest": lowest}
    attributes = {name: values[name] for name in body.attribute}
    node = onnx.helper.make_node(spec.name, spec.inputs, ["context"], domain=DOMAIN, **attributes)
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in fed.items()
    ]
    graph = onnx.helper.make_graph([node], "g", ends, [onnx.helper.make_empty_tensor_value_info("context")])
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    domains = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid(DOMAIN, 1)]
    model = onnx.helper.make_model(graph, opset_imports=domains, functions=[body], ir_version=10)
    got = make_session(model.SerializeToString(), threads=1).run(None, fed)[0]
    q, k, v, mask = (fed[name].astype(np.float64) for name in ("q", "k", "v", "mask"))
    scores = 0.5 * q @ k.swapaxes(2, 3) + mask
    scores[..., fed["kpos"][None] > fed["qpos"][:, None]] = lowest
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    want = shares / shares.sum(-1, keepdims=True) @ v
    agree(got, want, "operator", np.float32)


def test_reasons_are_given_for_what_is_not_taken() -> None:
    spec = AttentionSpec("DistanceScores", mask="keys")
    choice = choose(ATTENTION, spec, Target("cpu", 23))
    assert choice.lowering.name == "blockwise"
    assert choice.rejected["formula"] == "it holds the scores of all pairs at once"
    assert choice.rejected["group-query"] == "it is for caches of fixed size that the attention writes to itself"
    assert all(choice.rejected.values())
    assert {choice.lowering.name, *choice.rejected} == {each.name for each in ATTENTION.lowerings}


@pytest.mark.parametrize(
    ("batch", "tokens", "changed"),
    [
        ("B", "T", {}),
        (2, "T", {"most_scores": 2 * 5 * 300**2}),
        ("B", 7, {"longest": 7, "shortest": 7, "least_scores": 5 * 7**2}),
    ],
)
def test_fixed_sizes_of_queries_bound_the_scores(batch: str | int, tokens: str | int, changed: dict[str, int]) -> None:
    """Attention of one row after the other has a fixed batch, attention inside windows a fixed number of queries."""
    target, queries = Target("portable", 24, longest=300), ir.Value(shape=ir.Shape([batch, 5, tokens, 8]))
    node = ir.node("Attention", [queries] * 3, {"heads": 5}, domain=DOMAIN)
    assert functions._sized(target, AttentionSpec(), [node]) == dataclasses.replace(target, **changed)
