"""ModernBERT, T5, mT5, UMT5 and XLNet: what is read of them, what is refused, and what no golden file shows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, Tensors, change, configure, outputs, read, refusal, same

from posexport.encodings.compose import RotationAndTerm
from posexport.encodings.learned import Learned
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.rope.rope import Rope
from posexport.encodings.t5 import T5
from posexport.models.encoder import Encoder
from posexport.sources.source import Source
from tests.tolerances import agree, agree_each

Copy = Callable[[str], Path]
STATES = "last_hidden_state"


def tables(source: Source) -> list[torch.Tensor]:
    """Of every layer."""
    encoder = source.module.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    return [encoding.table for encoding in encoder.encodings if isinstance(encoding, T5)]


def states(source: Source, **given: torch.Tensor) -> torch.Tensor:
    """The hidden states in float64."""
    with torch.inference_mode():
        found: torch.Tensor = source.module.double()(**given)[0]
    return found


@pytest.mark.parametrize(
    ("name", "task", "encoding", "boundaries", "names"),
    [
        ("modernbert-formaskedlm", "fill-mask", "rope", [4], 2),
        ("modernbert-cls", "sequence-classification", "rope", [3], 2),
        ("modernbert-forsequenceclassification", "sequence-classification", "rope", [7], 2),
        ("t5-encodermodel", "features", "t5", [2, 7, 20], 2),
        ("t5-fortokenclassification", "token-classification", "t5", [3, 5, 13, 20], 2),
        ("umt5-encodermodel", "features", "t5", [2, 7, 20], 2),
        ("xlnet-model", "features", "transformer-xl", [10], 3),
        ("xlnet-forsequenceclassification", "sequence-classification", "transformer-xl", [], 3),
    ],
)
def test_what_the_source_says(name: str, task: str, encoding: str, boundaries: list[int], names: int) -> None:
    source = read(GOLDEN / name)
    assert source.encoding is not None
    assert (source.task, source.encoding.name) == (task, encoding)
    assert (source.limits.max_length, source.limits.trained_length, source.limits.boundaries) == (
        None,
        None,
        boundaries,
    )
    assert source.promises.shift_invariant
    assert source.promises.padding_invariant
    assert source.promises.reads_first_token == (name == "modernbert-cls")
    assert [spec.name for spec in source.inputs] == ["input_ids", "attention_mask", "token_type_ids"][:names]


# -- ModernBERT ------------------------------------------------------------------------------------


def test_settings_as_transformers_5_writes_them(copy: Copy) -> None:
    directory = copy("modernbert-forsequenceclassification")
    old = read(directory)
    configure(
        directory,
        global_attn_every_n_layers=...,
        global_rope_theta=...,
        local_rope_theta=...,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 700.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        },
    )
    assert same(read(directory), old)
    configure(directory, layer_types=["full_attention", "sliding_attention", "full_attention"])
    assert not same(read(directory), old)


def test_each_kind_of_layer_has_its_base(copy: Copy) -> None:
    directory = copy("modernbert-formaskedlm")
    old = read(directory)
    configure(directory, local_rope_theta=700.0)
    assert not same(read(directory), old)
    configure(directory, local_rope_theta=None)
    same_base = read(directory)
    configure(directory, local_rope_theta=700.0)
    assert same(read(directory), same_base)


def test_a_window_does_not_show_what_is_outside() -> None:
    """With all layers but the first local, a token two windows away is seen by the first alone."""
    source = read(GOLDEN / "modernbert-formaskedlm", "features")
    encoder = source.module.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    encoder.groups[0] = torch.nn.Identity()
    encoder.groups[0].forward = lambda x, *_: x  # type: ignore[method-assign]
    ids = torch.arange(5, 22)[None]
    other = ids.clone()
    other[0, 9] = 27
    mask = torch.ones_like(ids)
    changed = states(source, input_ids=ids, attention_mask=mask) - states(source, input_ids=other, attention_mask=mask)
    assert [bool(row.abs().max() > 1e-3) for row in changed[0]] == [6 <= i <= 12 for i in range(17)]


def test_half_precision_with_padding_stays_finite() -> None:
    source = read(GOLDEN / "modernbert-formaskedlm", "features")
    ids = torch.arange(5, 5 + 17)[None].expand(2, -1)
    mask = (torch.arange(17) >= torch.tensor([[15], [0]])).long()
    wanted = states(source, input_ids=ids, attention_mask=mask)
    with torch.inference_mode():
        got = source.module.half()(input_ids=ids, attention_mask=mask)[0]
    assert torch.isfinite(got).all()
    off = ((got.double() - wanted) * mask[..., None]).abs().max()
    assert off < 0.05 * wanted.abs().max()


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_sentence_embeddings(copy: Copy, mode: str) -> None:
    directory = copy("modernbert-formaskedlm")
    wanted = outputs(read(directory, "features"))[0]
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"path": f"{i}_{kind}" if i == 1 else "", "type": f"sentence_transformers.models.{kind}"} for i, kind in
               enumerate(kinds)]  # fmt: skip
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    key = "pooling_mode_mean_tokens" if mode == "mean" else "pooling_mode_cls_token"
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 20, key: True}))
    source = read(directory)
    assert source.task == "sentence-embedding"
    found = outputs(source)
    pooled = wanted.mean(1) if mode == "mean" else wanted[:, 0]
    assert torch.equal(found[0], wanted)
    agree(found[1], pooled / pooled.norm(dim=-1, keepdim=True), "rounded", found[1].dtype)


# -- T5 --------------------------------------------------------------------------------------------


def whole(directory: Path) -> None:
    """An encoder's checkpoint as the whole model would be saved."""

    def add(tensors: Tensors) -> None:
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
        tensors["decoder.embed_tokens.weight"] = tensors["shared.weight"].clone()
        tensors["decoder.block.0.layer.1.EncDecAttention.q.weight"] = torch.ones(15, 20)
        tensors["lm_head.weight"] = torch.ones(29, 20)

    change(directory, add)
    configure(directory, architectures=["T5ForConditionalGeneration"], is_encoder_decoder=True)


def test_of_a_whole_t5_the_encoder_is_read_when_asked_for(copy: Copy) -> None:
    alone = read(GOLDEN / "t5-encodermodel")
    directory = copy("t5-encodermodel")
    whole(directory)
    sentence = refusal(directory)
    assert "do not fit a t5 for text2text-generation" in sentence
    assert "another --task" in sentence
    source = read(directory, "features")
    assert same(source, alone)
    assert any("the decoder (2 tensors)" in remark for remark in source.remarks)
    assert any("language-model head" in remark for remark in source.remarks)
    change(directory, lambda tensors: tensors["encoder.embed_tokens.weight"].add_(1))
    assert "differ in the file" in refusal(directory, "features")


@pytest.mark.parametrize("architecture", ["T5Model", "T5ForQuestionAnswering"])
def test_what_needs_the_decoder_is_refused(copy: Copy, architecture: str) -> None:
    directory = copy("t5-encodermodel")
    configure(directory, architectures=[architecture])
    assert "--task features" in refusal(directory)


def test_tables_of_the_layers() -> None:
    one, many = tables(read(GOLDEN / "t5-encodermodel")), tables(read(GOLDEN / "umt5-encodermodel"))
    assert [table.shape for table in one] == [table.shape for table in many] == [(8, 5), (8, 5)]
    assert one[0] is one[1]
    assert not torch.equal(many[0], many[1])


def test_rms_norm_of_large_numbers_in_half_precision() -> None:
    """Squares of its inputs overflow float16; they are taken in float32."""
    source = read(GOLDEN / "t5-encodermodel")
    norm = source.module.get_submodule("encoder.final_norm")
    x = torch.linspace(-900, 1000, 20)
    wanted = x.double().numpy() / (x.double().numpy() ** 2).mean() ** 0.5 * norm.weight.double().numpy()
    got = norm.half()(x.half())
    assert got.dtype == torch.float16
    agree_each(got, wanted, "operator in half precision", np.float16)


# -- XLNet -----------------------------------------------------------------------------------------


def test_types_of_one_text_do_not_matter() -> None:
    source = read(GOLDEN / "xlnet-model")
    ids = torch.arange(5, 22)[None]
    without = states(source, input_ids=ids)
    for types in (torch.zeros_like(ids), torch.full_like(ids, 3)):
        got = states(source, input_ids=ids, attention_mask=torch.ones_like(ids), token_type_ids=types)
        agree(got, without, "model", np.float64)
    two = states(source, input_ids=ids, token_type_ids=(ids > 11).long())
    assert (two - without).abs().max() > 0.05


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_is_classified_at_its_last_real_token(side: str) -> None:
    source = read(GOLDEN / "xlnet-forsequenceclassification")
    ids = torch.arange(5, 22)[None]
    pad = (0, 4) if side == "right" else (4, 0)
    padded, mask = (torch.nn.functional.pad(x, pad, value=v) for x, v in ((ids, 3), (torch.ones_like(ids), 0)))
    wanted = states(source, input_ids=ids)
    agree(states(source, input_ids=padded, attention_mask=mask), wanted, "model", np.float64)


def test_a_text_is_classified_at_its_first_token_where_the_file_says_so(copy: Copy) -> None:
    directory = copy("xlnet-forsequenceclassification")
    last = read(directory)
    configure(directory, summary_type="first")
    first = read(directory)
    assert first.promises.reads_first_token
    (said,) = [text for text in first.remarks if "padded on the left" in text]
    assert "answered at token 0" in said
    assert "pad texts on the right" in said
    assert not any("padded on the left" in text for text in last.remarks)
    assert not same(first, last)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("modernbert-formaskedlm", {"num_attention_heads": 4}, "even number of channels"),
        ("modernbert-formaskedlm", {"layer_types": ["full_attention"]}, "layer_types"),
        ("modernbert-formaskedlm", {"layer_types": ["full_attention", "none"]}, "layer_types"),
        ("modernbert-formaskedlm", {"hidden_activation": "quick"}, "hidden_activation"),
        ("modernbert-formaskedlm", {"global_rope_theta": "far"}, "rope_theta"),
        ("modernbert-cls", {"classifier_pooling": "max"}, "classifier_pooling"),
        ("t5-encodermodel", {"feed_forward_proj": "gated"}, "feed_forward_proj"),
        ("t5-encodermodel", {"feed_forward_proj": "gated-quick"}, "feed_forward_proj"),
        ("t5-encodermodel", {"relative_attention_num_buckets": 7}, "relative_attention_num_buckets"),
        ("t5-encodermodel", {"relative_attention_max_distance": 2}, "relative_attention_max_distance"),
        ("t5-encodermodel", {"d_kv": 4}, "[20, 20]"),
        ("xlnet-model", {"attn_type": "uni"}, "attn_type"),
        ("xlnet-model", {"bi_data": True}, "bi_data"),
        ("xlnet-model", {"d_model": 15}, "d_model"),
        ("xlnet-model", {"d_head": 5}, "d_head"),
        ("xlnet-model", {"n_head": 10, "d_head": ...}, "[20, 10, 2]"),
        ("xlnet-model", {"architectures": ["XLNetLMHeadModel"]}, "--task"),
        ("xlnet-forsequenceclassification", {"summary_type": "mean"}, "summary_type"),
        ("xlnet-forsequenceclassification", {"summary_use_proj": False}, "summary_use_proj"),
        ("xlnet-forsequenceclassification", {"summary_activation": None}, "summary_activation"),
    ],
)
def test_what_is_not_computed_is_refused(copy: Copy, name: str, values: dict[str, Any], words: str) -> None:
    directory = copy(name)
    configure(directory, **values)
    assert words in refusal(directory)


# -- encodings made of others ----------------------------------------------------------------------


def test_a_rotation_with_a_window_has_the_limits_of_both() -> None:
    both = RotationAndTerm(Rope(head_size=4), LocalWindow(left=3, right=5))
    assert (both.boundaries, both.limit, both.trained_length) == ([4, 6], None, None)
    with pytest.raises(ValueError, match="embed"):
        RotationAndTerm(Rope(head_size=4), Learned(hidden=20))
