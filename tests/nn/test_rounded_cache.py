"""The KV cache in 8 bits: its numbers, its proof, and who refuses it."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import posexport
from posexport.errors import PosexportError
from posexport.nn import caching, rounded_cache
from posexport.sources.builtin import builtin_source
from posexport.sources.prepare import with_kv_cache
from tests.matrix.cases import GOLDEN
from tests.small import shared
from tests.tolerances import agree, within

LLAMA = GOLDEN / "llama-forcausallm"
INT8: dict[str, Any] = {"cache_precision": "int8"}


def builtin(name: str, directory: Path, **options: Any) -> Any:
    settings = dict(pair.split("=", 1) for pair in shared(name))
    return posexport.convert(name, directory, settings=settings, remark=lambda _: None, **INT8, **options)


@pytest.mark.parametrize("size", [1e-5, 3e-3, 1.0, 77.7, 1e6])
def test_every_number_is_within_half_a_step_and_scales_are_small(size: float) -> None:
    """Written from the module's docstring: m is the least whole number that keeps the largest channel in 127 steps."""
    generator = torch.Generator().manual_seed(5)
    k, v = (size * torch.randn(2, 3, 17, channels, generator=generator).double() for channels in (12, 12))
    k[0, 0, 3] = 0
    for x, kept in zip((k, v), rounded_cache.rounded(k, v), strict=True):
        assert kept.dtype == torch.int8
        assert kept.shape == (2, 3, 17, 14)
        whole, m, e = (part.double().numpy() for part in (kept[..., :12], kept[..., 12:13], kept[..., 13:]))
        scale, largest = m * 2.0**e, x.abs().amax(-1, keepdim=True).numpy()
        assert (np.abs(whole - x.numpy() / scale) <= 0.5).all()
        assert (largest.astype(np.float32) <= (127 * scale).astype(np.float32)).all()
        fits = e > -24
        assert (127 * (m - 1) * 2.0**e < largest)[fits].all()
        assert (m >= 64)[fits].all()
        np.testing.assert_array_equal(rounded_cache.restored(kept, torch.float64).numpy(), whole * scale)


def test_float32_is_shifted_so_that_luck_spares_no_tie() -> None:
    """As the float32 run of quantized graphs is: the same row with another neighbour is rounded otherwise somewhere."""
    x = torch.randn(1, 4, 4096, 16, generator=torch.Generator().manual_seed(1))
    (one, _), (other, _) = rounded_cache.rounded(x, x), rounded_cache.rounded(x[:, :, :4000], x[:, :, :4000])
    differs = (one[:, :, :4000] != other).double().mean()
    assert 0 < differs < 0.01


def test_calls_are_those_of_the_definition_with_rounded_keys(tmp_path: Path) -> None:
    """A prefill, a step after it, and generation in chunks and by beams."""
    builtin("decoder-rope", tmp_path / "bundle", verify=False)
    session = posexport.load(tmp_path / "bundle")
    source = builtin_source("decoder-rope", task=None, settings_given=shared("decoder-rope"))
    module = with_kv_cache(source, "dynamic", "at-write", "int8").module.double()
    ids = np.array([[5, 9, 3, 7, 11, 2, 8], [1, 4, 6, 12, 10, 3, 3]])
    with torch.no_grad():
        logits, *_ = module(torch.from_numpy(ids))
        exact, *_ = source.module.double()(torch.from_numpy(ids))
    empty = {spec.name: np.zeros((2, 1, 0, 10), np.int8) for spec in session.inputs if spec.role == "cache"}
    prefill = session.run({"input_ids": ids[:, :6], "attention_mask": np.ones_like(ids[:, :6])} | empty)
    past = {name.replace("present", "past_key_values"): x for name, x in prefill.items() if name != "logits"}
    step = session.run({"input_ids": ids[:, 6:], "attention_mask": np.ones_like(ids)} | past)
    agree(np.concatenate((prefill["logits"], step["logits"]), 1), logits, "model", np.float32)
    assert not within(exact, logits, "model", np.float32)
    assert {x.shape for x in past.values()} == {(2, 1, 6, 8 + 2)}
    whole, chunks = (
        session.generate([[5, 9, 3, 7, 11, 2, 8]], max_new_tokens=9, prefill_chunk_size=size).completions[0].tokens
        for size in (None, 3)
    )
    assert whole == chunks
    for other, said in ((1.0, "holds float64, this bundle's cache is int8"), (300, "it takes numbers of int8")):
        foreign = {name: np.full(x.shape, other) for name, x in past.items()}
        with pytest.raises(PosexportError, match=said):
            session.run({"input_ids": ids[:, 6:], "attention_mask": np.ones_like(ids)} | foreign)
    assert len(session.generate([[5, 9, 3]], max_new_tokens=4, num_beams=3).completions[0].tokens) == 4


@pytest.mark.all
@pytest.mark.parametrize(
    "options",
    [
        {"lengths": [1, 17]},
        {"lengths": [1, 17], "cache": "static", "target": "cpu"},
        # with caches of 8,191 tokens, which are drawn
        {"precision": "fp16"},
        {"precision": "bf16", "target": "cuda"},
        {"precision": "fp16", "cache": "static", "target": "cuda"},
        {"precision": "int4-fp16", "target": "cuda", "lengths": [1, 17]},
    ],
)
def test_a_decoder_is_proven(options: dict[str, Any], tmp_path: Path) -> None:
    result = builtin("decoder-rope", tmp_path / "bundle", **options)
    assert result.report.passed
    past = [spec for spec in result.manifest.inputs if spec.role == "cache"]
    assert {spec.dtype for spec in past} == {"int8"}


@pytest.mark.all
@pytest.mark.fresh
@pytest.mark.parametrize(
    ("precision", "target", "part"),
    [
        *product(["fp32"], ["portable", "cpu"], ["rounding", "mantissa", "exponent"]),
        # bfloat16 itself rounds as coarsely as the cache: rounding down is not found there
        *product(["fp16", "bf16"], ["cuda"], ["mantissa", "exponent"]),
        ("fp16", "portable", "rounding"),
    ],
)
def test_a_graph_that_rounds_otherwise_is_refused(
    precision: str, target: str, part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rounds, restores, tracing = rounded_cache._rounded, rounded_cache.restored, torch.onnx.is_in_onnx_export

    def restored(kept: Tensor, dtype: torch.dtype) -> Tensor:
        if tracing() and part != "rounding":
            whole, m, e = kept[..., :-2], kept[..., -2:-1], kept[..., -1:]
            m, e = (torch.full_like(m, 90), e) if part == "mantissa" else (m, e.roll(1, 1))
            kept = torch.cat((whole, m, e), -1)
        return restores(kept, dtype)

    def rounded(x: Tensor) -> Tensor:
        with monkeypatch.context() as patch:
            if tracing() and part == "rounding":
                patch.setattr(torch, "round", torch.floor)
            return rounds(x)

    monkeypatch.setattr(rounded_cache, "_rounded", rounded)
    monkeypatch.setattr(caching, "restored", restored)
    # in half precision one rounding shows in the median of many points
    lengths = None if (precision, part) == ("fp16", "rounding") else [1, 17]
    given = {"precision": precision, "target": target, "lengths": lengths, **INT8}
    report = posexport.convert(LLAMA, tmp_path / "bundle", remark=lambda _: None, **given).report
    assert report is not None
    assert not report.passed


@pytest.mark.all
@pytest.mark.parametrize("source", ["gemma3-forcausallm", "t5-forconditionalgeneration", "llama-dynamic-forcausallm"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_windows_cross_attention_and_rotation_at_read_are_proven(source: str, precision: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rotation": "at-read"} if source.startswith("llama") else {}
    options |= {"precision": precision, "remark": lambda _: None}
    result = posexport.convert(GOLDEN / source, tmp_path / "bundle", **INT8, **options)
    assert result.report is not None
    assert result.report.passed


class Plain(torch.nn.Module):
    """A decoder without posexport's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(29, 20), torch.nn.Linear(20, 29)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        q = x.view(*x.shape[:2], 5, 4).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        logits: Tensor = self.head(x + mixed.transpose(1, 2).flatten(2))
        return logits


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("encoder-t5", {}, "needs a decoder with a cache"),
        (str(LLAMA), {"layout": "genai"}, "--layout genai is for a library"),
        (Plain(), {"example_inputs": {"input_ids": torch.tensor([[1, 2, 3, 4, 5]])}}, "posexport.nn.Attention"),
    ],
    ids=["no-cache", "layout", "inserted"],
)
def test_what_cannot_have_one_is_refused(source: Any, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=said):
        posexport.convert(source, tmp_path / "bundle", **INT8, **options)
    assert not (tmp_path / "bundle").exists()


def test_models_that_proofs_compare_with_their_own_forward_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = builtin_source("decoder-rope", task=None, settings_given=shared("decoder-rope"))
    monkeypatch.setattr(source.module, "judged_by_forward", True, raising=False)
    with pytest.raises(PosexportError, match="--cache-precision int8: the proof compares"):
        with_kv_cache(source, "dynamic", "at-write", "int8")
