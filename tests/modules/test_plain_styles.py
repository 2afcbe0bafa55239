"""How decoders in the wild are written: capped scores, returned keys and values, functions as attributes."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE
from posexport.conversion.convert import convert
from posexport.conversion.export.trace import trace
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.graph.passes.graph_pass import NotInsertedError, PassResult
from posexport.graph.passes.insert_cache import InsertCache
from posexport.modules.live_module import module_source
from posexport.modules.with_cache import with_cache
from posexport.proof.criterion import rows
from posexport.proof.invariants.changes import take_tokens
from posexport.sources.example import axis_sizes, example
from tests.modules.test_plain_decoders import IDS, LONGEST, C, H, Opt, SelfAttention, V, source_of
from tests.small import in_short
from tests.tolerances import agree


def causal(scores: Tensor) -> Tensor:
    T = scores.shape[-1]
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=scores.device).triu(1), -torch.inf)


class Capped(SelfAttention):
    """Gemma 2's."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal(torch.tanh(q @ k.mT / 3).mul(2)).softmax(-1) @ v


class Tempered(SelfAttention):
    """A scale of every head, as where queries and keys are normalised."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale_H11 = torch.linspace(0.3, 1.7, H, dtype=q.dtype)[:, None, None]
        return causal(q @ k.mT * scale_H11).softmax(-1) @ v


class Flattened(SelfAttention):
    """GPT-NeoX's: batch and heads are one axis of the scores alone."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, T, D = q.shape
        scores = torch.zeros(B * H, T, T, dtype=q.dtype)
        scores = scores.baddbmm(q.reshape(B * H, T, D), k.reshape(B * H, T, D).mT, alpha=0.4)
        return causal(scores.view(B, H, T, T)).softmax(-1) @ v


class NarrowValues(SelfAttention):
    """Multi-head latent attention has keys wider than values: what is rotated beside what is not."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v[..., :4], is_causal=True)
        return torch.cat((y, v[..., 4:]), -1)


class NarrowKeysByHand(SelfAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal(q[..., :4] @ k[..., :4].mT * 0.7).softmax(-1) @ v


class Gathered(Opt):
    """GPT-J's rows of a table."""

    def __init__(self, attention: Callable[[], nn.Module] = SelfAttention) -> None:
        super().__init__(attention)
        self.table = torch.randn(LONGEST, C)

    def forward(self, idx: Tensor) -> Tensor:
        at = torch.arange(idx.shape[1])[None]
        rows_1TC = self.table.repeat(at.shape[0], 1, 1).gather(1, at[..., None].repeat(1, 1, C))
        return super().forward(idx) + self.lm_head(rows_1TC)


class Picked(Opt):
    """gpt-fast's rows of a mask that is no buffer."""

    def __init__(self, attention: Callable[[], nn.Module] = SelfAttention) -> None:
        super().__init__(attention)
        self.mask = torch.ones(LONGEST, LONGEST).tril()

    def forward(self, idx: Tensor) -> Tensor:
        rows_11TS = self.mask[None, None, torch.arange(idx.shape[1])]
        return super().forward(idx) + self.lm_head(rows_11TS[0, :, :, :C])


class InPlace(Opt):
    """A tensor of all rows is multiplied by what differs from row to row."""

    def forward(self, idx: Tensor) -> Tensor:
        numbers = torch.ones(idx.shape[1], C)
        numbers *= torch.arange(idx.shape[1])[:, None]
        return super().forward(idx) + self.lm_head(numbers[None])


class NeoX(Opt):
    """GPT-NeoX cuts the first axis of a table that has one row there."""

    def __init__(self, attention: Callable[[], nn.Module] = SelfAttention) -> None:
        super().__init__(attention)
        self.table = torch.randn(1, 1, LONGEST, C)

    def forward(self, idx: Tensor) -> Tensor:
        at = torch.arange(idx.shape[1])
        rows_TC = self.table[: idx.shape[1], ...][0, 0][at]
        return super().forward(idx) + self.lm_head(rows_TC[None])


class MaskWhereNeeded(nn.Module):
    """transformers makes a mask where something is padded, and wherever it is traced."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.place, self.qkv = nn.Embedding(V, C), nn.Embedding(LONGEST + 2, C), nn.Linear(C, 3 * C)
        self.lm_head = nn.Linear(C, V)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        T, mask = input_ids.shape[1], None
        if torch.compiler.is_compiling() or not bool(attention_mask.all()):
            at = torch.arange(T)
            mask = (at <= at[:, None]) & attention_mask[:, None, None].bool()
        x = self.token(input_ids) + self.place(torch.arange(2, T + 2))
        q, k, v = (y.unflatten(-1, (H, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        logits: Tensor = self.lm_head(x + context.transpose(1, 2).flatten(2))
        return logits


def test_a_mask_that_is_made_where_it_is_needed_goes_with_the_cache() -> None:
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    source = with_cache(module_source(MaskWhereNeeded().eval(), inputs), None)
    assert source.task == "text-generation"


class Returning(Opt):
    """Keys and values beside logits, or hidden states."""

    def __init__(self, more: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.more = more

    def forward(self, idx: Tensor) -> Any:
        return super().forward(idx), self.more(self.wte(idx))


def test_keys_and_values_that_forward_returns_are_those_of_the_cache() -> None:
    source = source_of(Returning(lambda x: [(x.unflatten(-1, (H, -1)).transpose(1, 2),) * 2] * 2))
    assert source.task == "text-generation"
    assert any("(output_1.0.0, output_1.0.1, output_1.1.0, output_1.1.1) are those of" in r for r in source.remarks)
    logits = source.module(IDS)[0].detach()
    agree(logits.numpy(), Returning(torch.relu).eval()(IDS)[0].detach().numpy(), "attention", np.float32)


def test_hidden_states_beside_logits_are_kept_and_named() -> None:
    source = source_of(Returning(torch.relu))
    assert source.task == "features"
    assert [spec.name for spec in source.outputs] == ["output_0", "output_1"]
    assert "without a KV cache: beside logits it returns output_1 [" in source.remarks[-1]


class Closed(nn.Module):
    """minGPT's feed-forward: a function that closes over parts; and SDPA whose causality is a truth of lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.word, up, drop, down = nn.Embedding(V, C), nn.Linear(C, 2 * C), nn.Dropout(0.5), nn.Linear(2 * C, C)
        self.parts = nn.ModuleList([up, drop, down])
        self.feed = lambda x: down(drop(up(x)))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids)
        y = F.scaled_dot_product_attention(x, x, x, is_causal=ids.shape[1] > 1)
        fed: Tensor = self.feed(y)
        return fed


def test_functions_of_a_module_are_those_of_its_copies() -> None:
    source = module_source(Closed(), {"ids": IDS})  # in training mode, in which the function of the original would drop
    with torch.no_grad():
        wide = copy.deepcopy(source.module).double()(ids=IDS)[0]
        agree(source.module(ids=IDS)[0].numpy(), wide.numpy(), "model in float32", np.float32)
    trace(source, opset=18)


def test_past_keys_as_a_list_are_refused_with_what_to_do() -> None:
    with pytest.raises(PosexportError, match=r"example of past is a list.*leave it out.*gives a decoder a KV cache"):
        module_source(Opt(), {"idx": IDS, "past": [(IDS, IDS)]})


def test_weights_of_cross_attention_have_two_axes_of_tokens() -> None:
    y_BTS, axes = np.arange(2 * 3 * 5).reshape(2, 3, 5), [BATCH, SEQUENCE, ENCODER_SEQUENCE]
    keep_BS = np.array([[True] * 5, [True, True, False, False, True]])
    kept = [row[keep] for row, _, keep in rows(y_BTS, y_BTS, axes, keep_BS)]
    np.testing.assert_array_equal(kept[1], y_BTS[1][:, keep_BS[1]].T)
    np.testing.assert_array_equal(take_tokens(y_BTS, axes, [0, 2], [1, 4]), y_BTS[:, [0, 2]][:, :, [1, 4]])


@pytest.mark.parametrize(
    "asked", in_short([{}, {"task": "text-generation"}, {"cache": "static"}], lambda asked: not asked), ids=str
)
def test_a_decoder_whose_graph_cannot_have_the_cache_is_converted_for_features(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_given: Any) -> PassResult:
        raise NotInsertedError("no such cache at this opset")

    monkeypatch.setattr(InsertCache, "apply", refuses)
    options = ConvertOptions(example_inputs={"idx": IDS}, verify=False, **asked)
    if asked:
        with pytest.raises(PosexportError, match="no such cache"):
            convert(Opt().eval(), tmp_path / "b", options)
        return
    done = convert(Opt().eval(), tmp_path / "b", options)
    assert done.manifest is not None
    assert done.manifest.task == "features"
    assert re.search(r"for features instead, .* no such cache.*text-generation", done.remarks[-1])


class Cropped(Opt):
    """nanoGPT's generate, as a part of forward."""

    def forward(self, idx: Tensor) -> Tensor:
        return super().forward(idx if idx.shape[1] <= 23 else idx[:, -23:])


def test_a_module_that_cuts_long_inputs_takes_those_that_it_does_not_cut() -> None:
    module = Cropped()
    source = source_of(module)
    assert (source.task, source.limits.max_length) == ("text-generation", 23)
    assert any(
        "cuts longer inputs: its output output has the shape [1, 23, 53] at length 24" in remark
        for remark in source.remarks
    )


class Stacked(Opt):
    """Past keys and values as one tensor, of which the number of past tokens is the start of positions."""

    def forward(self, idx: Tensor, past: Tensor) -> Tensor:
        before = past.shape[4]
        x = self.wte(idx) + self.wpe(torch.arange(before, before + idx.shape[1]))
        x = x + past[0, 0].mean((1, 2, 3))[:, None, None]
        logits: Tensor = self.lm_head(x)
        return logits


def test_past_keys_as_one_tensor_fail_with_what_to_do() -> None:
    source = module_source(Stacked(), {"idx": IDS, "past": torch.randn(2, 2, 2, H, 7, C // H)})
    lengths = dict.fromkeys((SEQUENCE, ENCODER_SEQUENCE), LONGEST - 1)
    with pytest.raises(PosexportError, match=r"the example has past: leave it out.*gives a decoder a KV cache") as err:
        source.module(**example(source.inputs, axis_sizes(source.inputs, lengths)))
    assert "--max-length" not in str(err.value)


class InBlocks(SelfAttention):
    """Tokens of a block see one another."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        block = torch.arange(q.shape[2]) // 4
        return F.scaled_dot_product_attention(q, k, v, block[:, None] >= block)


class Everywhere(SelfAttention):
    """Of a masked language model."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Numbered(Opt):
    """gpt-fast's: positions are an input."""

    def forward(self, idx: Tensor, input_pos: Tensor | None = None) -> Tensor:
        if input_pos is None:
            return super().forward(idx)
        return super().forward(idx) + self.lm_head(self.wpe(input_pos))


WITHOUT: dict[str, tuple[nn.Module, dict[str, Tensor], str]] = {
    "blocks": (Opt(InBlocks), {}, ""),
    "positions": (
        Numbered(),
        {"input_pos": torch.arange(11)},
        "its inputs must be input_ids, and may be attention_mask and position_ids; got idx, input_pos: leave out",
    ),
    "past": (Stacked(), {"past": torch.randn(2, 2, 2, H, 7, C // H)}, "the example has past: leave it out"),
    "masked": (Opt(Everywhere), {}, ""),
    "masked with positions": (Numbered(Everywhere), {"input_pos": torch.arange(11)}, ""),
}


@pytest.mark.parametrize(("module", "more", "why"), WITHOUT.values(), ids=WITHOUT)
def test_what_looks_like_a_decoder_is_told_why_it_has_no_cache(
    module: nn.Module, more: dict[str, Tensor], why: str
) -> None:
    source = with_cache(module_source(module.eval(), {"idx": IDS, **more}), None)
    assert source.task == "features"
    said = [remark for remark in source.remarks if "without a KV cache" in remark]
    assert len(said) == bool(why)
    assert all(f"for features, without a KV cache: {why}" in remark for remark in said)


def test_a_module_that_looks_ahead_is_not_traced_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.modules.with_cache.by_pass", pytest.fail)
    module = Opt(Everywhere).eval()
    assert with_cache(module_source(module, {"idx": IDS}), None).task == "features"
