"""Without padding in the layers of audio encoders: real frames are those of the definition in float64."""

import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from posexport.base.sizes import samples
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.export.trace import trace
from posexport.graph.builder import Builder
from posexport.graph.lowering import functions
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.padding import unpadding
from posexport.graph.passes.padding.between import _Row
from posexport.graph.passes.pipeline import run
from posexport.models.speech import frame_mask
from posexport.sources import builtin
from posexport.sources.source import Source
from tests.graph.passes.test_unpadding import CPU
from tests.small import by_attention, in_short
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[2] / "golden"
#: whose layers mix frames by attention alone, or by convolutions over frames that are zeros where they are padding
CHECKPOINTS = (
    "wavlm-group",
    "wavlm-layer-forctc",
    "wav2vec2-bert-relative",
    "wav2vec2-bert-relative_key-forctc",
    "wav2vec2-bert-rotary",
)
REFUSED = {
    "wav2vec2-conformer-rotary": "Conv may read the hidden states of padding",
    "wav2vec2-conformer-relative-forctc": "Conv may read the hidden states of padding",
    "wav2vec2-bert-adapter-forctc": "attention is not all over the same tokens",
}
#: real frames of each row
FRAMES = (29, 3, 11, 1)


@functools.cache
def _source(name: str) -> Source:
    if (GOLDEN / name).exists():
        return checkpoint_source(GOLDEN / name, task=None, allow_pickle=False)
    return builtin.builtin_source(name, task=None, settings_given=("layers=2", "hidden=40", "heads=5"))


@functools.cache
def _traced(name: str) -> onnx.ModelProto:
    return ir.to_proto(trace(_source(name), CPU.opset))


def _model(name: str) -> tuple[ir.Model, tuple[str, ...]]:
    """With an output that says whether padding is left out, and why it never is."""
    model = ir.from_proto(_traced(name))
    model.ir_version = 10
    result = run(model, Context(CPU))["unpadding"]
    for value in [value for node in model.graph for value in node.outputs if value.name == "padding_is_dropped"]:
        value.shape = ir.Shape([])
        model.graph.outputs.append(value)
    functions.attach(model, CPU)
    return model, result.rejected


def _mask(source: Source, frames: tuple[int, ...]) -> torch.Tensor:
    """Of samples, or of frames where the model reads those."""
    steps = source.limits.convolutions
    lengths = torch.tensor([samples(count, steps) + (1 if count else -5) if steps else count for count in frames])
    return (torch.arange(int(lengths.max())) < lengths[:, None]).long()


def _wanted(source: Source, inputs: tuple[torch.Tensor, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What the definition gives in float64, and which of it is of real frames."""
    module = copy.deepcopy(source.module).double()
    (y_BTC,) = module(inputs[0].double(), inputs[1])
    steps = source.limits.convolutions
    return y_BTC.detach().numpy(), (frame_mask(inputs[1], steps, y_BTC) if steps else inputs[1]).numpy() != 0


def _check(name: str, masks: Sequence[torch.Tensor]) -> list[bool]:
    """That real frames are right and others zeros; where padding was left out."""
    source, (model, _) = _source(name), _model(name)
    names = [str(value.name) for value in model.graph.inputs]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    left_out = []
    for mask in masks:
        torch.manual_seed(3)
        values = torch.randn(*mask.shape, *[size for size in source.inputs[0].axes if isinstance(size, int)])
        want, real = _wanted(source, (values, mask))
        got, dropped = session.run(None, dict(zip(names, (values.numpy(), mask.numpy()), strict=True)))
        agree(got[real], want[real], "model in float32", np.float32)
        assert not got[~real].any()
        left_out.append(bool(dropped))
    return left_out


@pytest.mark.parametrize(
    "name",
    in_short([*by_attention("audio-"), *CHECKPOINTS], (CHECKPOINTS[3],).__contains__),
)
def test_real_frames_are_those_of_the_definition(name: str) -> None:
    mask, empty = (_mask(_source(name), frames) for frames in (FRAMES, (*FRAMES, 0)))
    # of samples the definition sees how many there are, on whichever side
    other_side = [mask.flip(1)] if _source(name).limits.convolutions else []
    dropped = _check(name, [mask, torch.ones_like(mask), empty, *other_side])
    assert dropped == [True, False, dropped[2], *[True] * len(other_side)]


@pytest.mark.all
@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_padding_stays_where_a_convolution_reads_it(name: str, reason: str) -> None:
    assert _model(name)[1] == (reason,)


def _wrong_frames(patch: pytest.MonkeyPatch) -> None:
    gather = unpadding.gather
    patch.setattr(
        unpadding,
        "gather",
        lambda graph, g, nodes, keep: gather(graph, g, nodes, _put(graph, g, keep)),
    )


def _put(graph: ir.Graph, g: Builder, keep: ir.Value) -> ir.Value:
    earlier = g.Max(g.Sub(keep, 1), 0)
    last = keep.producer()
    assert last is not None
    graph.insert_after(last, g.take())
    return earlier


def _not_put_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Builder,
        "ScatterND",
        lambda g, zeros, _places, rows: g.Concat(rows, g.slice(zeros, g.size(rows, 0), g.size(zeros, 0), 0), axis=0),
        raising=False,
    )


def _of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    """A row reads its neighbour's last frame for its own first one."""

    def tokens(row: _Row, matrix: ir.Value) -> ir.Value:
        begin = row.g.Max(row.g.Sub(row.g.Gather(row._real.ends, row._number), row.g.Add(row._length, 1)), [0])
        return row.g.slice(matrix, begin, row.g.Add(begin, row._length), 0)

    patch.setattr(_Row, "tokens", tokens)


@pytest.mark.parametrize("broken", [_wrong_frames, _not_put_back, _of_the_neighbour])
def test_a_wrong_frame_is_seen(monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None]) -> None:
    broken(monkeypatch)
    mask = _mask(_source(CHECKPOINTS[1]), FRAMES)
    with pytest.raises(AssertionError, match="is allowed"):
        _check(CHECKPOINTS[1], [mask])
