"""Longformer's attention against its definition token by token, at lengths of one block and of several."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.export.trace import trace
from posexport.encodings.absolute import Absolute
from posexport.encodings.alibi import Alibi
from posexport.encodings.encoding import Array
from posexport.errors import PosexportError
from posexport.graph.lowering import functions
from posexport.models.encoder import EncoderConfig
from posexport.models.longformer import BLOCK, Longformer, LongformerModel, WindowAttention, band, marked
from posexport.nn.heads import Features, QuestionAnswering, SequenceClassification
from posexport.run.feeds import prepare
from posexport.sources.source import Source, draw, model_of
from tests.tolerances import agree

pytestmark = pytest.mark.usefixtures("one_thread")

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = EncoderConfig.of(vocab=31, hidden=15, layers=1, heads=5, feedforward=17, types=0, padding_id=1)


def rows(length: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows, whole, padded on the left and on the right: which tokens are real, and which of these are marked."""
    real = torch.ones(3, length, dtype=torch.bool)
    real[1, : length // 3] = False
    real[2, (length + 1) // 2 :] = False
    draws = torch.rand(3, length, generator=torch.Generator().manual_seed(length))
    return real, (draws < share) & real


def oracle(attention: WindowAttention, side: int, x: Array, real: Array, flags: Array) -> Array:
    """Beltagy et al. 2020, section 3.1: the set of keys of each query, and a softmax over it."""

    def project(name: str) -> Array:
        linear = attention.get_submodule(name)
        return x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()

    of = {name + kind: project(name + kind) for name in ("query", "key", "value") for kind in ("", "_global")}
    width = x.shape[2] // attention.heads
    out = np.zeros_like(x)
    for b, t in zip(*np.nonzero(real), strict=True):
        kind = "_global" if flags[b, t] else ""
        seen = [s for s in np.flatnonzero(real[b]) if flags[b, t] or flags[b, s] or abs(int(s) - int(t)) <= side]
        for h in range(attention.heads):
            part = slice(h * width, (h + 1) * width)
            scores = of[f"key{kind}"][b, seen, part] @ of[f"query{kind}"][b, t, part] / np.sqrt(width)
            weights = np.exp(scores - scores.max())
            out[b, t, part] = weights @ of[f"value{kind}"][b, seen, part] / weights.sum()
    return out @ attention.output.weight.detach().numpy().T + attention.output.bias.detach().numpy()


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0], ids=["none-marked", "some", "all"])
@pytest.mark.parametrize("length", [1, 2, 5, BLOCK, BLOCK + 1, 2 * BLOCK + 13])
def test_attention_is_that_of_the_paper(length: int, share: float) -> None:
    attention = WindowAttention(CONFIG.hidden, CONFIG.heads).double()
    draw(attention, length)
    real, flags = rows(length, share)
    x = torch.randn(3, length, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    chosen = marked(flags)
    for side in (1, 3, 2 * BLOCK):
        with torch.inference_mode():
            got = attention(x, real, band(side, real, chosen, x), chosen).numpy()
        wanted = oracle(attention, side, x.numpy(), real.numpy(), flags.numpy())
        agree(got, wanted, "model", np.float64)


def model(default: str = "none", positions: int = 310) -> LongformerModel:
    heads = {"none": Features(15), "first": SequenceClassification(15, 3, "tanh"), "question": QuestionAnswering(15)}
    encoder = Longformer(CONFIG, Absolute(max_positions=positions, hidden=15), [6])
    made = LongformerModel(encoder, heads[default], default=default, separator=4).eval()
    draw(made, 5)
    return made


def test_one_graph_is_right_at_every_length(tmp_path: Path) -> None:
    """With any number of marked tokens, none too, and none in one row of a batch."""
    made = model()
    source = Source.of(model_of(made, "features"), name="longformer", kind="builtin", sha256="")
    assert (source.limits.min_length, source.limits.max_length, source.promises.position_offset) == (1, 308, 2)
    assert {4, BLOCK} <= set(source.limits.boundaries)
    path = tmp_path / "model.onnx"
    graph = trace(source, 18, optimize=False)
    functions.attach(graph)
    path.write_bytes(onnx_ir.to_proto(graph).SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for length, share in ((1, 0.0), (2, 1.0), (17, 0.3), (BLOCK, 0.1), (BLOCK + 1, 0.0), (300, 0.02)):
        real, flags = rows(length, share)
        flags[0] &= length != 17
        ids = torch.where(real, torch.randint(5, 31, real.shape), 1)
        feeds = {"input_ids": ids, "attention_mask": real.long(), "global_attention_mask": flags.long()}
        with torch.inference_mode():
            wanted = made(**feeds)[0].numpy()
        got = session.run(None, {name: value.numpy() for name, value in feeds.items()})[0]
        agree(got, wanted, "model in float32", np.float32)


class _Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that any operation gives."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(t.numel() for t in (out,) if isinstance(t, torch.Tensor))])
        return out


def test_memory_grows_with_the_length_not_its_square() -> None:
    made = model(positions=4000)

    def largest(length: int) -> int:
        with torch.inference_mode(), _Largest() as seen:
            made(input_ids=torch.full((1, length), 7))
        return seen.numel

    assert largest(2048) < 2.2 * largest(1024)


def test_padding_on_either_side_changes_nothing() -> None:
    made = model().double()
    ids = torch.randint(5, 31, (1, 23), generator=torch.Generator().manual_seed(3))
    flags = torch.zeros_like(ids)
    flags[0, 4] = 1
    with torch.inference_mode():
        wanted = made(input_ids=ids, global_attention_mask=flags)[0]
        for left, right in ((0, 9), (9, 0), (50, 31)):

            def pad(x: torch.Tensor, value: int, sides: tuple[int, int] = (left, right)) -> torch.Tensor:
                return torch.nn.functional.pad(x, sides, value=value)

            # marks on padding are no marks
            got = made(
                input_ids=pad(ids, 1), attention_mask=pad(torch.ones_like(ids), 0), global_attention_mask=pad(flags, 1)
            )
            agree(got[0][:, left : left + 23], wanted, "model", np.float64)


def test_what_is_marked_where_the_mask_marks_nothing() -> None:
    ids = torch.tensor([[9, 8, 4, 4, 7, 6, 4], [1, 9, 9, 8, 4, 7, 6], [9, 8, 7, 6, 5, 8, 1]])
    mask = (ids != 1).long()
    zeros = torch.zeros_like(ids)
    by_hand = {
        "first": [[1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]],
        "question": [[1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]],
    }
    for default, listed in by_hand.items():
        made = model(default).double()
        given = torch.tensor(listed)
        with torch.inference_mode():
            got = made(input_ids=ids, attention_mask=mask, global_attention_mask=zeros)[0]
            assert torch.equal(got, made(input_ids=ids, attention_mask=mask)[0])
            made.default = "none"
            assert torch.equal(got, made(input_ids=ids, attention_mask=mask, global_attention_mask=given)[0])
            assert (got - made(input_ids=ids, attention_mask=mask)[0]).abs().max() > 1e-3
            # a row that marks something has no default; the others still have
            made.default = default
            own = zeros.clone()
            own[0, 5] = 1
            mixed = made(input_ids=ids, attention_mask=mask, global_attention_mask=own)[0]
            made.default = "none"
            wanted = made(input_ids=ids, attention_mask=mask, global_attention_mask=torch.cat([own[:1], given[1:]]))[0]
            assert torch.equal(mixed, wanted)


@pytest.mark.parametrize(
    ("encoding", "windows", "message"),
    [
        (Alibi(heads=5), [4], "alibi: it acts on scores"),
        (Absolute(max_positions=9, hidden=15), [4, 4], "each of 1 layers, got 2"),
        (Absolute(max_positions=9, hidden=15), [5], "even number from 2 on, got 5"),
    ],
)
def test_what_does_not_fit_is_refused(encoding: Absolute, windows: list[int], message: str) -> None:
    with pytest.raises(PosexportError, match=message):
        Longformer(CONFIG, encoding, windows)


def test_flags_that_are_not_given_mark_nothing() -> None:
    made = model()
    ids = np.full((2, 3), 7)
    arrays = prepare({"input_ids": ids}, made.inputs, made.limits)
    assert arrays["global_attention_mask"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert prepare({"input_ids": ids, "global_attention_mask": ids == 7}, made.inputs, made.limits)[
        "global_attention_mask"
    ].tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(PosexportError, match=r"holds 2 at \[0, 1\]; it takes 1 for a marked token"):
        prepare({"input_ids": ids, "global_attention_mask": [[0, 2, 0]] * 2}, made.inputs, made.limits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_window": 5}, "attention_window = 5; it must be an even number"),
        ({"attention_window": [4]}, r"attention_window = \[4\]; it must be"),
        ({"attention_window": True}, "attention_window = True; it must be"),
        ({"max_position_embeddings": 2}, r"positions start at pad_token_id \+ 1 = 2, so it must be greater"),
        ({"num_attention_heads": 3}, "the heads must divide the size"),
    ],
)
def test_a_configuration_that_does_not_fit(tmp_path: Path, change: dict[str, object], message: str) -> None:
    shutil.copytree(GOLDEN / "longformer-formaskedlm", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PosexportError, match=message):
        checkpoint_source(tmp_path, task=None, allow_pickle=False)
