"""Decoders of the GPT kind: what their sources say, the layouts of fused maps, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, Tensors, change, configure, read, refusal
from safetensors.torch import load_file

from posexport.encodings.alibi import Alibi
from posexport.encodings.sinusoidal import Sinusoidal
from posexport.errors import PosexportError
from posexport.graph.ops.biases import slopes
from posexport.models.decoder import DecoderConfig
from posexport.sources.source import Source
from tests.tolerances import agree, agree_each

#: checkpoint: encoding, some of its parameters, longest input, heads of keys and values, size of a head
KNOWN: dict[str, tuple[str, dict[str, Any], int | None, int, int]] = {
    "gpt2-lmheadmodel": ("absolute", {"max_positions": 33}, 33, 5, 4),
    "bloom-forcausallm": ("alibi", {"variant": "causal"}, None, 5, 4),
    "gpt_neox-forcausallm": ("rope", {"rotary_dim": 4, "base": 60, "layout": "half"}, None, 5, 6),
    "gpt_neox-sequential-forcausallm": ("rope-linear", {"factor": 2.0}, None, 5, 6),
    "gptj-forcausallm": ("rope", {"rotary_dim": 4, "layout": "interleaved"}, None, 5, 6),
    "opt-forcausallm": ("learned", {"offset": 2, "hidden": 20}, 33, 5, 4),
    "opt-post-forcausallm": ("learned", {"offset": 2, "hidden": 20}, 33, 5, 4),
    "falcon-forcausallm": ("rope", {"base": 60.0}, None, 2, 4),
    "falcon-old-forcausallm": ("rope", {}, None, 1, 4),
    "falcon-alibi-forcausallm": ("alibi", {"variant": "causal", "factor": 0.5}, None, 5, 4),
    "mpt-forcausallm": ("alibi", {"variant": "causal", "bias_max": 6.0}, None, 5, 4),
    "xglm-forcausallm": ("sinusoidal", {"timescales": "tensor2tensor", "offset": 2}, None, 5, 4),
    "gpt_bigcode-forcausallm": ("absolute", {}, 33, 1, 4),
    "gpt_neo-forcausallm": ("absolute", {"max_positions": 33}, 33, 5, 4),
}


def call(source: Source, ids: torch.Tensor, past: list[torch.Tensor] | None = None) -> tuple[torch.Tensor, ...]:
    module = source.module.double()
    held = [spec for spec in source.inputs if spec.role == "cache"]
    if past is None:
        past = [torch.zeros(1, spec.axes[1], 0, spec.axes[3], dtype=torch.float64) for spec in held]
    mask = torch.ones(1, past[0].shape[2] + ids.shape[1], dtype=torch.int64)
    named = {spec.name: tensor for spec, tensor in zip(held, past, strict=True)}
    with torch.inference_mode():
        found: tuple[torch.Tensor, ...] = module(input_ids=ids, attention_mask=mask, **named)
    return found


def logits(directory: Path) -> torch.Tensor:
    return call(read(directory), torch.arange(3, 20)[None])[0]


@pytest.mark.parametrize("name", KNOWN)
def test_what_the_source_says(name: str) -> None:
    encoding, parameters, limit, kv_heads, size = KNOWN[name]
    source = read(GOLDEN / name)
    assert source.task == "text-generation"
    assert source.encoding is not None
    assert source.encoding.name == encoding
    assert parameters.items() <= source.encoding.parameters.items()
    assert (source.limits.max_length, source.limits.trained_length, source.limits.kv_cache) == (
        limit,
        limit,
        True,
    )
    assert [spec.axes[1::2] for spec in source.inputs if spec.role == "cache"] == [[kv_heads, size]] * 4
    assert source.promises.shift_invariant


@pytest.mark.parametrize("name", KNOWN)
def test_calls_one_after_the_other_give_transformers_logits(name: str) -> None:
    source = read(GOLDEN / name)
    stored = load_file(GOLDEN / name / "expected.safetensors")
    ids, wanted = stored["none-17.input_ids"].long(), stored["none-17.logits"]
    past, got = None, []
    for part in ids.split([9, 1, 6, 1], 1):
        out, *past = call(source, part, past)
        got.append(out)
    agree(torch.cat(got, 1), wanted, "frequencies", np.float32)


def repeated(directory: Path, name: str, queries: int, groups: int) -> None:
    """Every head its own copy of its group's keys and values: [query, key, value] head by head."""

    def edit(tensors: Tensors) -> None:
        for key in [key for key in tensors if f".{name}." in key]:
            parts = tensors[key].unflatten(0, (groups, queries + 2, -1))
            heads = [torch.cat([group[q], group[-2], group[-1]]) for group in parts for q in range(queries)]
            tensors[key] = torch.cat(heads)

    change(directory, edit)


@pytest.mark.parametrize(
    ("name", "fused", "queries", "groups", "separate"),
    [
        ("gpt_bigcode-forcausallm", "c_attn", 5, 1, {"multi_query": False}),
        ("falcon-old-forcausallm", "query_key_value", 5, 1, {"multi_query": False}),
        ("falcon-forcausallm", "query_key_value", 3, 2, {"num_kv_heads": 6}),
        ("falcon-forcausallm", "query_key_value", 3, 2, {"num_kv_heads": None, "n_head_kv": 6}),
    ],
)
def test_shared_keys_and_values_are_copies(copy, name, fused, queries, groups, separate) -> None:
    wanted = logits(GOLDEN / name)
    directory = copy(name)
    repeated(directory, fused, queries, groups)
    configure(directory, **separate)
    agree(logits(directory), wanted, "model", np.float64)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bloom-forcausallm", {"hidden_size": ..., "n_embed": 20, "n_head": ..., "num_attention_heads": 5}),
        (
            "gpt2-lmheadmodel",
            {"n_layer": ..., "num_hidden_layers": 2, "n_positions": ..., "max_position_embeddings": 33},
        ),
        ("gpt_neox-forcausallm", {"rope_theta": ..., "partial_rotary_factor": ...}),
        ("gpt_neox-forcausallm", {"rotary_pct": ..., "rotary_emb_base": ...}),
        ("gptj-forcausallm", {"pad_token_id": None, "is_decoder": True}),
        ("mpt-forcausallm", {"d_model": ..., "hidden_size": 20, "expansion_ratio": 4, "logit_scale": None}),
        ("falcon-old-forcausallm", {"num_ln_in_parallel_attn": 1, "num_kv_heads": 3}),
    ],
)
def test_spellings(copy, name: str, given: dict[str, Any]) -> None:
    directory = copy(name)
    configure(directory, **given)
    assert torch.equal(logits(directory), logits(GOLDEN / name))


@pytest.mark.parametrize("name", ["gpt2-lmheadmodel", "gpt_neox-forcausallm", "opt-forcausallm", "bloom-forcausallm"])
def test_files_without_a_prefix_and_with_masks(copy, name: str) -> None:
    """As the base models were saved once: no prefix, the head apart, masks and rotations among the weights."""
    directory = copy(name)
    attention = {"gpt2": "h.{}.attn", "gpt_neox": "layers.{}.attention"}.get(name.split("-")[0])

    def edit(tensors: Tensors) -> None:
        for key in list(tensors):
            below = key.partition(".")[2]
            if not key.startswith(("lm_head", "embed_out")):
                tensors[below] = tensors.pop(key)
        for i in range(2 if attention else 0):
            tensors[f"{attention}.bias".format(i)] = torch.ones(1, 1, 33, 33).tril()
            tensors[f"{attention}.masked_bias".format(i)] = torch.tensor(-1e4)

    change(directory, edit)
    assert torch.equal(logits(directory), logits(GOLDEN / name))
    change(directory, lambda tensors: tensors.update({"h.9.attn.bias": torch.ones(1)}))
    assert "h.9.attn.bias" in refusal(directory)


def test_windows_of_gpt_neo(copy) -> None:
    """``attention_layers`` goes before ``attention_types``, as in transformers; either may be missing."""
    directory = copy("gpt_neo-forcausallm")
    before = logits(directory)
    configure(directory, attention_layers=...)
    assert torch.equal(logits(directory), before)
    configure(directory, attention_types=...)
    assert torch.equal(logits(directory), before)
    configure(directory, attention_layers=["global", "global"])
    # in a window of 7 the first tokens see all before them
    far = (logits(directory) - before).abs().amax((0, 2))
    assert far[:7].max() == 0
    assert far[7:].min() > 0


def test_normalisations_without_weights(copy) -> None:
    norms = ("layer_norm.weight", "layer_norm.bias")
    plain, bare = copy("opt-forcausallm"), GOLDEN / "opt-forcausallm"
    change(plain, lambda tensors: [t.fill_(k.endswith("weight")) for k, t in tensors.items() if k.endswith(norms)])
    wanted = logits(plain)
    assert (wanted - logits(bare)).abs().max() > 1e-3
    change(plain, lambda tensors: [tensors.pop(key) for key in list(tensors) if key.endswith(norms)])
    configure(plain, layer_norm_elementwise_affine=False)
    assert torch.equal(logits(plain), wanted)


def test_the_final_normalisation_of_old_files(copy) -> None:
    """Where there is none, the hidden states are what it would have read."""
    directory = copy("opt-forcausallm")
    norm = [f"model.decoder.final_layer_norm.{leaf}" for leaf in ("weight", "bias")]
    change(directory, lambda tensors: [tensors.pop(name) for name in norm])
    configure(directory, _remove_final_layer_norm=True)
    raw = call(read(directory, "features"), torch.arange(3, 20)[None])[0]
    stored = load_file(GOLDEN / "opt-forcausallm" / "model.safetensors")
    weight, bias = (stored[name].double() for name in norm)
    wanted = call(read(GOLDEN / "opt-forcausallm", "features"), torch.arange(3, 20)[None])[0]
    got = torch.nn.functional.layer_norm(raw, (20,), weight, bias, 1e-5)
    agree(got, wanted, "model", np.float64)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("gpt2-lmheadmodel", {"n_head": 6}, "n_embd = 20, n_head = 6; the heads must divide"),
        ("gpt2-lmheadmodel", {"add_cross_attention": True}, "cross attention"),
        ("gpt2-lmheadmodel", {"activation_function": "prelu"}, "activation_function = 'prelu'"),
        (
            "gpt2-lmheadmodel",
            {"architectures": ["GPT2DoubleHeads"]},
            "choose --task out of text-generation, sequence-classification, features",
        ),
        ("gpt2-lmheadmodel", {"n_positions": 34}, "transformer.wpe.weight is [33, 20], needed [34, 20]"),
        ("bloom-forcausallm", {"apply_residual_connection_post_layernorm": True}, "only false is read"),
        ("gpt_neox-forcausallm", {"rope_scaling": {"rope_type": "spiral"}}, "unknown rope_type 'spiral'"),
        ("gpt_neox-forcausallm", {"rotary_pct": 0.1}, "must be an even number from 2 on, got 0"),
        ("gptj-forcausallm", {"rotary_dim": 8}, "8 rotated channels do not fit into head_size=6"),
        ("opt-forcausallm", {"word_embed_proj_dim": 12}, "model.decoder.project_in.weight"),
        ("opt-forcausallm", {"pad_token_id": 23}, "pad_token_id = 23"),
        ("falcon-forcausallm", {"num_kv_heads": 4}, "num_kv_heads = 4; it must divide the 6 heads"),
        ("falcon-forcausallm", {"parallel_attn": False}, "always parallel"),
        ("falcon-forcausallm", {"num_ln_in_parallel_attn": 3}, "num_ln_in_parallel_attn = 3"),
        ("falcon-old-forcausallm", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn = 2"),
        ("mpt-forcausallm", {"no_bias": False}, "no_bias = False; only true is read"),
        ("mpt-forcausallm", {"logit_scale": 0.5}, "logit_scale = 0.5; only null is read"),
        (
            "mpt-forcausallm",
            {"attn_config": {"clip_qkv": -6}},
            "attn_config.clip_qkv = -6; it must be a number above 0",
        ),
        ("mpt-forcausallm", {"attn_config": {"alibi": False}}, "attn_config.alibi = False; only true is read"),
        ("mpt-forcausallm", {"attn_config": {"alibi_bias_max": 0}}, "attn_config.alibi_bias_max = 0"),
        ("mpt-forcausallm", {"attn_config": [1]}, "must be an object"),
        ("xglm-forcausallm", {"pad_token_id": 4}, "pad_token_id = 4"),
        ("gpt_neo-forcausallm", {"attention_layers": ["local", "local"]}, "for each of 2 layers, and global once"),
        ("gpt_neo-forcausallm", {"attention_layers": ["global", "sparse"]}, "they must name global or local"),
        ("gpt_neo-forcausallm", {"attention_layers": ..., "attention_types": 3}, "attention_types = 3"),
    ],
)
def test_what_is_refused(copy, name: str, given: dict[str, Any], said: str) -> None:
    directory = copy(name)
    configure(directory, **given)
    assert said in refusal(directory)


def test_an_mpt_file_may_say_that_nothing_is_clipped(copy) -> None:
    directory = copy("mpt-forcausallm")
    configure(
        directory, attn_config={"alibi_bias_max": 6, "softmax_scale": 0.3, "clip_qkv": None, "attn_impl": "triton"}
    )
    assert torch.equal(logits(directory), logits(GOLDEN / "mpt-forcausallm"))
    configure(directory, attn_config={"alibi_bias_max": 6, "softmax_scale": None})
    assert (logits(directory) - logits(GOLDEN / "mpt-forcausallm")).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2-lmheadmodel", "gptj-forcausallm"])
def test_features_leave_the_head_out(copy, name: str) -> None:
    directory = copy(name)
    source = read(directory, "features")
    assert source.outputs[0].name == "last_hidden_state"
    assert any("head" in remark for remark in source.remarks) == (name == "gptj-forcausallm")
    configure(directory, architectures=["GPT2Model" if name.startswith("gpt2") else "GPTJModel"])
    assert read(directory).task == "features"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parallel_norms": 3}, "parallel_norms must be 1 or 2"),
        ({"parallel_norms": 1, "norm": "post"}, "needs norm=pre"),
        ({"parallel_norms": 2, "feedforward": 0}, "needs norm=pre, a feed-forward"),
        ({"embedding_scale": 0.0}, "embedding_scale must be a finite number above 0"),
        ({"norm_weight": False, "norm_kind": "rms"}, "norm_weight=false is for norm_kind=layer"),
    ],
)
def test_settings_that_exclude_each_other(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        DecoderConfig.of(**given)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Alibi(heads=5, bias_max=0.0), "bias_max must be a finite number above 0, got 0.0"),
        (lambda: Alibi(heads=5, factor=float("nan")), "factor must be a finite number above 0, got nan"),
        (
            lambda: Sinusoidal(hidden=3, timescales="tensor2tensor"),
            "hidden must be at least 4 with timescales=tensor2tensor, got 3",
        ),
        (lambda: Sinusoidal(hidden=8, timescales="fairseq"), "timescales must be transformer or tensor2tensor"),  # type: ignore[arg-type]
        (lambda: Sinusoidal(hidden=8, offset=-1), "offset must be a whole number from 0 on, got -1"),
    ],
)
def test_encodings_say_what_is_wrong(make, said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        make()


def test_slopes_of_another_largest_exponent() -> None:
    """As MPT's released code counts them: of the next power of two, the odd ones first."""
    for heads in (1, 4, 5, 6, 12):
        whole = 1 << (heads - 1).bit_length()
        all_of = [2.0 ** (-11 * (h + 1) / whole) for h in range(whole)]
        ordered = all_of if whole == heads else [*all_of[1::2], *all_of[::2]][:heads]
        agree_each(slopes(heads, 11.0), ordered, "rounded", np.float64)
