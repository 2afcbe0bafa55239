"""Attention as users write it: it is recognised for every target, by what the graph has, and its values are right."""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, ENCODER_SEQUENCE
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.graph_pass import PassResult
from posexport.modules.recognise.attention import as_product
from posexport.modules.recognise.linear_einsum import as_linear
from posexport.modules.recognise.mode import Recognised
from posexport.sources.torch_fixes.as_exported import as_exported
from tests.small import after_recognition, in_short, proven
from tests.tolerances import agree

V, D, H, S, LONGEST = 17, 12, 3, 9, 80
IDS = torch.arange(22).reshape(2, 11) % V
MASK = torch.ones_like(IDS)


class Model(nn.Module):
    """Two layers on a table of learned positions; a subclass says how they attend."""

    longest = LONGEST

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.table = nn.Embedding(V, D), nn.Parameter(torch.randn(self.longest, D))
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(D, D) for _ in range(2))

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.token(ids) + self.table[: ids.shape[1]]
        return x

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (y.unflatten(-1, (H, D // H)).transpose(1, 2) for y in qkv(x).chunk(3, -1))
            x = x + out(self.attend(q, k, v, attention_mask).transpose(1, 2).flatten(2))
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError


class KeyPadding(Model):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None].bool())


class FloatMask(Model):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        T = mask.shape[1]
        dropped = (1 - mask[:, None, None].to(q.dtype)) * torch.finfo(q.dtype).min
        return F.scaled_dot_product_attention(q, k, v, dropped.expand(-1, H, T, T), scale=0.3)


class IsCausal(Model):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class CausalAndPadding(Model):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        T = mask.shape[1]
        seen = torch.ones(T, T, dtype=torch.bool, device=q.device).tril() & mask[:, None, None].bool()
        return F.scaled_dot_product_attention(q, k, v, seen)


class Grouped(Model):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], mask[:, None, None].bool(), enable_gqa=True)


class Alibi(Model):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        slopes = 2.0 ** -torch.arange(1, H + 1).to(q.dtype)
        bias = -(at - at[:, None]).abs() * slopes[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, bias.masked_fill(mask[:, None, None] == 0, -torch.inf))


class MultiHead(Model):
    weights = True

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x, x, x, key_padding_mask=attention_mask == 0, need_weights=self.weights)[0]
        return x


class MultiHeadAlone(MultiHead):
    weights = False


class Encoder(Model):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 20, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        y: Tensor = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return y


class EncoderWithMask(Encoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1], dtype=self.table.dtype)
        y: Tensor = self.encoder(self.embed(input_ids), mask=causal)
        return y


class Decoder(Model):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 2, 20, batch_first=True), 2)

    def forward(self, input_ids: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(input_ids.shape[1], dtype=self.table.dtype)
        x = self.embed(input_ids)
        y: Tensor = self.decoder(x, memory, causal, tgt_is_causal=True, memory_key_padding_mask=memory_mask == 0)
        return y


class Eager(Model):
    """BERT by hand: scaled after the product, an added mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / (D // H) ** 0.5
        scores = scores + (1.0 - mask[:, None, None].to(q.dtype)) * torch.finfo(q.dtype).min
        return F.dropout(scores.softmax(-1), 0.1, self.training) @ v


class NanoGpt(Model):
    """Its mask is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.ones(1, 1, LONGEST, LONGEST).tril())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        T = q.shape[2]
        scores = (q @ k.transpose(-2, -1)) * (1.0 / (D // H) ** 0.5)
        scores = scores.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class ByEinsum(Model):
    """Heads last, scaled before the product."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = torch.einsum("bthd,bshd->bhts", q * (D // H) ** -0.5, k)
        probs = scores.masked_fill(~mask[:, None, None].bool(), -1e9).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", probs, v).transpose(1, 2)


class ByBaddbmm(Model):
    """Batch and heads as one axis."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        (B, _, T, _), dropped = q.shape, torch.where(mask == 0, -torch.inf, 0.0).to(q.dtype)
        q, k, v = (x.reshape(B * H, T, -1) for x in (q, k, v))
        bias = dropped[:, None, None].expand(B, H, T, T).reshape(B * H, T, T)
        probs = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.5).softmax(-1)
        return torch.bmm(probs, v).view(B, H, T, -1)


class T5(Model):
    """A bias of positions that all layers share, no scale."""

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Embedding(31, H)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        bias = self.relative((at - at[:, None]).clamp(-15, 15) + 15).permute(2, 0, 1)[None]
        bias = bias + (1 - mask[:, None, None].to(q.dtype)) * torch.finfo(q.dtype).min
        return F.softmax((q @ k.transpose(3, 2) + bias).type_as(q), dim=-1) @ v


#: what attention nodes are called without how the target packs and shares, and how many there are
RECOGNISED: dict[type[Model], dict[str, int]] = {
    KeyPadding: {"MaskedAttention": 2},
    FloatMask: {"MaskedAttention": 2},
    IsCausal: {"CausalAttention": 2},
    CausalAndPadding: {"CausalMaskedAttention": 2},
    Grouped: {"GroupedMaskedAttention": 2},
    Alibi: {"MaskedDistanceAttention": 2},
    MultiHead: {"MaskedAttention": 2},
    MultiHeadAlone: {"MaskedAttention": 2},
    Encoder: {"MaskedAttention": 2},
    EncoderWithMask: {"CausalAttention": 2},
    Decoder: {"CausalAttention": 2, "MaskedAttention": 2},
    Eager: {"MaskedAttention": 2},
    NanoGpt: {"CausalAttention": 2},
    ByEinsum: {"MaskedAttention": 2},
    ByBaddbmm: {"MaskedAttention": 2},
    T5: {"MaskedDistanceAttention": 2},
}
#: of which the CPU leaves padding out
UNPADDED = {KeyPadding, FloatMask, CausalAndPadding, Grouped, MultiHead, MultiHeadAlone, Encoder, Eager, ByEinsum}
UNPADDED |= {Alibi, ByBaddbmm, T5}
#: in the short tests; the others differ in how a mask or a product is written (tests/modules/test_twelve_modules.py)
_SHORT = {(KeyPadding, "portable"), (KeyPadding, "cpu"), (KeyPadding, "cuda"), (Encoder, "cpu"), (Decoder, "cuda")}
_SHORT |= {(model, "cpu") for model in (CausalAndPadding, Grouped, MultiHead, Eager, ByEinsum, T5, Alibi)}


def inputs(model: type[Model]) -> dict[str, Any]:
    if model is not Decoder:
        return {"example_inputs": {"input_ids": IDS, "attention_mask": MASK}}
    example = {"input_ids": IDS, "memory": torch.randn(2, S, D), "memory_mask": torch.ones(2, S, dtype=torch.int64)}
    axes = {"memory": [BATCH, ENCODER_SEQUENCE, D], "memory_mask": [BATCH, ENCODER_SEQUENCE]}
    return {"example_inputs": example, "axes": axes}


@pytest.mark.all(but=("Eager-cpu",))
@pytest.mark.parametrize(
    ("model", "target"),
    in_short(
        [(model, target) for model in RECOGNISED for target in ("portable", "cpu", "cuda")],
        lambda *pair: pair in _SHORT,
    ),
)
def test_it_is_recognised_and_right(tmp_path: Path, model: type[Model], target: str) -> None:
    manifest = proven(model(), tmp_path / "b", target=target, lengths=(1, 17), **inputs(model)).manifest
    found: Counter[str] = Counter()
    for name, lowering in manifest.lowerings.items():
        found[re.sub("Packed|Biased|Counted", "", name)] += lowering.nodes
    # attention that leaves padding out is there for a row too
    for_rows = manifest.passes["unpadding"].nodes
    assert all(found[name] >= nodes for name, nodes in RECOGNISED[model].items())
    assert manifest.passes["recognised-attention"].nodes == found.total() - for_rows == sum(RECOGNISED[model].values())
    assert bool(for_rows) == (target == "cpu" and model in UNPADDED)


# -- without an export: the same call of PyTorch, in the mode and outside --------------------------------


def of(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def dropping(*shape: int) -> Tensor:
    """A mask that keeps some, and no key of the first query."""
    kept = of(*shape) > -0.3
    kept.view(-1, shape[-1])[0] = False
    return kept


MASKS = [
    dropping(7, S),
    dropping(2, 1, 1, S),
    dropping(2, 1, 7, S),
    dropping(2, H, 7, S),
    dropping(1, H, 1, S),
    dropping(2, 1, 7, 1),
    of(7, S),
    of(2, H, 7, S),
    torch.where(dropping(2, 1, 7, S), of(2, 1, 7, S), -torch.inf),
    torch.where(dropping(2, 1, 1, S), 0.0, -torch.inf).expand(2, H, 7, S).double(),
    torch.full((2, 1, 1, S), torch.finfo(torch.float64).min, dtype=torch.float64),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: f"{mask.dtype}-{list(mask.shape)}")
def test_masks_are_pytorch_s(mask: Tensor) -> None:
    q, k, v = of(2, H, 7, 5), of(2, H, S, 5), of(2, H, S, 5)
    with Recognised() as seen:
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert seen.reasons == [None]
    agree(got, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), "attention", np.float64)


@pytest.mark.parametrize(
    ("tensors", "options", "recognised"),
    [
        ((of(2, H, 7, 5), of(2, H, S, 5), of(2, H, S, 4)), {"is_causal": True}, True),
        ((of(2, H, S, 5), of(2, H, 7, 5), of(2, H, 7, 5)), {"is_causal": True, "scale": 0.7}, True),
        ((of(2, 6, 7, 5), of(2, 2, S, 5), of(2, 2, S, 5)), {"enable_gqa": True}, True),
        ((of(2, 7, 5), of(2, S, 5), of(2, S, 5)), {"attn_mask": dropping(2, 7, S)}, True),
        ((of(7, 5), of(S, 5), of(S, 5)), {"attn_mask": dropping(7, S)}, True),
        ((of(2, 4, H, 7, 5), of(2, 4, H, S, 5), of(2, 4, H, S, 5)), {"attn_mask": dropping(2, 1, 1, 7, S)}, True),
        ((of(2, 4, H, 7, 5), of(2, 4, H, S, 5), of(2, 4, H, S, 5)), {"is_causal": True}, True),
        ((of(2, 4, H, 7, 5), of(2, 1, H, S, 5), of(2, 1, H, S, 5)), {}, False),
        ((of(2, H, 7, 5), of(1, H, S, 5), of(1, H, S, 5)), {}, False),
    ],
)
def test_calls_are_pytorch_s(tensors: tuple[Tensor, ...], options: dict[str, object], recognised: bool) -> None:
    with Recognised() as seen:
        got = F.scaled_dot_product_attention(*tensors, **options)
    assert (seen.reasons == [None]) is recognised
    agree(got, F.scaled_dot_product_attention(*tensors, **options), "attention", np.float64)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize(
    ("layer", "call", "recognised"),
    [
        ({"batch_first": True}, {"key_padding_mask": ~dropping(2, S)[:, [*range(1, S), 0]]}, True),
        ({}, {"attn_mask": torch.ones(S, S, dtype=torch.bool).triu(1)}, True),
        ({}, {"attn_mask": torch.ones(S, S, dtype=torch.bool).triu(1), "is_causal": True}, True),
        ({}, {"attn_mask": of(S, S), "key_padding_mask": torch.zeros(2, S, dtype=torch.float64)}, True),
        ({"bias": False}, {}, True),
        ({"add_bias_kv": True}, {}, False),
        ({"add_zero_attn": True}, {"key_padding_mask": torch.zeros(2, S, dtype=torch.bool)}, False),
        ({}, {"attn_mask": of(2 * H, S, S)}, False),
    ],
)
def test_multi_head_attention_is_pytorch_s(
    layer: dict[str, bool], call: dict[str, Tensor], recognised: bool, weights: bool
) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(D, H, dtype=torch.float64, **layer).eval()
    x = of(2, S, D) if layer.get("batch_first") else of(S, 2, D)
    if (mask := call.get("key_padding_mask")) is not None and mask.dtype == torch.bool:
        mask[0, 0], mask[0, 1] = False, True  # no row without keys: with weights, those are NaN
    with torch.no_grad(), as_exported():
        wanted = attention(x, x, x, need_weights=weights, **call)
        with Recognised() as seen:
            got = attention(x, x, x, need_weights=weights, **call)
    assert (seen.reasons == [None]) is recognised
    for one, other in zip(got, wanted, strict=True):
        assert (one is None) is (other is None)
        if one is not None:
            agree(one, other, "attention", np.float64)


def test_bool_masks_of_the_function_itself_drop_where_they_are_true() -> None:
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(D, H, dtype=torch.float64).eval(), of(S, 2, D)
    weights = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0, layer.out_proj.weight)
    padding = torch.arange(S) > torch.tensor([[4], [7]])
    call = partial(
        F.multi_head_attention_forward,
        x,
        x,
        x,
        D,
        H,
        *weights,
        layer.out_proj.bias,
        training=False,
        key_padding_mask=padding,
        need_weights=False,
    )
    with Recognised() as seen:
        got = call()[0]
    assert seen.reasons == [None]
    agree(got, call()[0], "attention", np.float64)


def test_cross_attention_of_other_channels() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(D, H, kdim=5, vdim=8, batch_first=True, dtype=torch.float64).eval()
    for q, k, v in ((of(2, 7, D), of(2, S, 5), of(2, S, 8)), (of(7, D), of(S, 5), of(S, 8))):
        with torch.no_grad(), as_exported():
            wanted, _ = attention(q, k, v)
            with Recognised() as seen:
                got, _ = attention(q, k, v)
        assert seen.reasons == [None]
        agree(got, wanted, "attention", np.float64)


@pytest.mark.parametrize(
    ("equation", "first", "second", "product"),
    [
        ("bhid,bhjd->bhij", (2, 3, 7, 5), (2, 3, 9, 5), True),
        ("bthd,bshd->bhts", (2, 7, 3, 5), (2, 9, 3, 5), True),
        ("bhts,bshd->bthd", (2, 3, 7, 9), (2, 9, 3, 5), True),
        ("bhid,bjd->bhij", (2, 3, 7, 5), (2, 9, 5), True),  # multi-query attention
        ("bhij,bjd->bhid", (2, 3, 7, 9), (2, 9, 5), True),
        ("bhij,bjd->bihd", (2, 3, 7, 9), (2, 9, 5), False),
        ("bqc,bchw->bqhw", (2, 7, 5), (2, 5, 4, 6), False),  # MaskFormer's masks
        ("...id,...jd->...ij", (2, 3, 4, 7, 5), (2, 3, 4, 9, 5), True),
        ("...id,...jd->...ij", (2, 3, 7, 5), (3, 9, 5), False),
        ("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5), False),  # SAM's
        ("bthd,tsd->bhts", (2, 7, 3, 5), (7, 9, 5), False),  # Shaw's
        ("bid,jd->bij", (2, 7, 5), (9, 5), False),
        ("bid,bjd->bi", (2, 7, 5), (2, 9, 5), False),
        ("bii,bij->bij", (2, 7, 7), (2, 7, 5), False),
        ("bid,bjd->bij", (2, 7, 5), (1, 9, 5), False),
    ],
)
def test_an_einsum_is_a_product(equation: str, first: tuple[int, ...], second: tuple[int, ...], product: bool) -> None:
    x, y = of(*first), of(*second)
    got = as_product(equation, (x, y), torch.matmul)
    assert (got is not None) is product
    if got is not None:
        agree(got, torch.einsum(equation, x, y), "attention", np.float64)


@pytest.mark.parametrize(
    ("equation", "first", "second", "linear"),
    [
        ("bpd,hde->bphe", (2, 7, 5), (3, 5, 4), True),  # transformer-lens
        ("bphe,hed->bpd", (2, 7, 3, 4), (3, 4, 5), True),
        ("bpd,hde->bhpe", (2, 7, 5), (3, 5, 4), True),
        ("bphe,deh->dbp", (2, 7, 3, 4), (5, 4, 3), True),
        ("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5), False),  # SAM's
        ("bpd,hdd->bph", (2, 7, 5), (3, 5, 5), False),
        ("bpd,hde->bpe", (2, 7, 5), (3, 5, 4), False),
        ("bpd,hde->bphe", (2, 7, 1), (3, 5, 4), False),
        ("bpd,de->bpe", (2, 7, 5), (5, 4), False),
    ],
)
def test_an_einsum_is_a_linear_projection(
    equation: str, first: tuple[int, ...], second: tuple[int, ...], linear: bool
) -> None:
    x, weight = of(*first), of(*second)
    computed = as_linear(equation, (x, weight))
    assert (computed is not None) is linear
    if computed is not None:
        agree(computed, torch.einsum(equation, x, weight), "attention", np.float64)


@pytest.mark.parametrize("listed", [False, True], ids=["operands", "a list of operands"])
def test_an_einsum_in_the_mode_is_a_product(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.einsum`` takes its operands alone or in a list."""
    products = list[Tensor]()
    monkeypatch.setattr(Recognised, "_matmul", lambda _, left, right: products.append(left @ right) or products[-1])
    x, y = of(2, 3, 7, 5), of(2, 3, 9, 5)
    operands = ([x, y],) if listed else (x, y)
    with Recognised():
        got = torch.einsum("bhid,bhjd->bhij", *operands)
    assert len(products) == 1
    agree(got, x @ y.mT, "attention", np.float64)


def test_attention_with_dropout_is_pytorch_s() -> None:
    """Its mask too."""
    q, k, v = of(2, H, 7, 5), of(2, H, S, 5), of(2, H, S, 5)
    mask = torch.zeros(7, S, dtype=torch.bool)
    mask[:, 3] = True  # sees one key alone
    with Recognised() as seen:
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=1e-9)
    assert seen.reasons == ["it drops some of its probabilities at random"]
    agree(got, v[:, :, 3:4].expand(-1, -1, 7, -1), "attention", np.float32)  # the dropout scales by 1 + 1e-9


def test_fast_paths_are_as_they_were() -> None:
    assert torch.backends.mha.get_fastpath_enabled()
    with as_exported():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


# -- what stays as it was written, and why -----------------------------------------------------------


def traced(model: Model) -> tuple[Counter[str], dict[str, PassResult]]:
    """What attention nodes of a traced model are called, and what was said of them."""
    graph, results = after_recognition(model, {"input_ids": IDS, "attention_mask": MASK}, 23)
    return Counter(spec.name for node in graph.graph if (spec := AttentionSpec.of(node))), results


class Returned(Model):
    """The probabilities are read elsewhere."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        probs = (q @ k.mT).softmax(-1)
        return probs @ v + probs.sum(-1, keepdim=True)


class WideWindows(Model):
    """No limit of length, and windows that are wider than what is looked at."""

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.token(ids)
        return x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        near = torch.ones(q.shape[2], q.shape[2]).tril().triu(-1499)
        return F.scaled_dot_product_attention(q, k, v, near > 0)


@pytest.mark.all
@pytest.mark.parametrize(
    ("model", "nodes", "entry", "reason"),
    [
        (Returned, {}, "recognised-attention", "its probabilities are read elsewhere too"),
        (WideWindows, {"PairMaskedAttention": 2}, "mask-structure", "a number or a table beyond the 1024 tokens"),
    ],
)
def test_what_is_left_says_why(model: type[Model], nodes: dict[str, int], entry: str, reason: str) -> None:
    found, results = traced(model())
    assert found == nodes
    assert any(reason in rejected for rejected in results[entry].rejected)
