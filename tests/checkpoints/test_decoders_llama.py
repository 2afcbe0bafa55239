"""Decoders with rotations (Llama, Gemma, Phi, StableLM): what is read, what is refused, what no golden file shows."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, Tensors, change, configure, outputs, read, refusal, same

from posexport.checkpoints.families.smollm3 import _rotates
from posexport.encodings.nope import NoPE
from posexport.models.decoder import DecoderModel
from posexport.nn.norms import LayerNormOfHeads, RMSNorm
from posexport.sources.source import Source
from tests.tolerances import agree, agree_each

Copy = Callable[[str], Path]
LLAMA = "llama-forcausallm"


def logits(source: Source, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Of one pass in float64."""
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids) if mask is None else mask}
    with torch.inference_mode():
        found: torch.Tensor = source.module.double()(**given)[0]
    return found


def in_calls(source: Source, ids: torch.Tensor, calls: list[int]) -> torch.Tensor:
    """Of several calls, each with the cache of the ones before, in float64."""
    model, held, parts, end = source.module.double(), (), [], 0
    assert isinstance(model, DecoderModel)
    for new in calls:
        start, end = end, end + new
        with torch.inference_mode():
            out, *held = model(ids[:, start:end], torch.ones_like(ids[:, :end]), tuple(held))
        parts.append(out)
    return torch.cat(parts, 1)


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 23, (rows, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("name", "encoding", "boundaries"),
    [
        ("llama-forcausallm", "rope", []),
        ("llama-llama3-forcausallm", "rope-llama3", [32]),
        ("mistral-forcausallm", "rope+local-window", [1, 7]),
        ("qwen2-forcausallm", "rope", [1, 7]),
        ("qwen3-forcausallm", "rope", []),
        ("phi3-forcausallm", "rope+local-window", [1, 12]),
        ("phi3-longrope-forcausallm", "rope-longrope", [20]),
        ("smollm3-forcausallm", "rope", []),
        ("gemma-forcausallm", "rope", []),
        ("gemma2-forcausallm", "rope+local-window", [1, 7]),
        ("gemma3-forcausallm", "rope+local-window", [1, 7]),
        ("phi-forcausallm", "rope", []),
        ("stablelm-forcausallm", "rope", []),
        ("stablelm-parallel-forcausallm", "rope", []),
        ("granite-forcausallm", "rope", []),
        ("olmo2-forcausallm", "rope", []),
        ("starcoder2-forcausallm", "rope+local-window", [1, 7]),
    ],
)
def test_what_the_source_says(name: str, encoding: str, boundaries: list[int]) -> None:
    source = read(GOLDEN / name)
    assert source.encoding is not None
    assert (source.task, source.encoding.name) == ("text-generation", encoding)
    assert (source.limits.max_length, source.limits.trained_length, source.limits.boundaries) == (
        None,
        None,
        boundaries,
    )
    assert source.limits.kv_cache
    assert source.limits.length_dependent == ("longrope" in name)
    assert source.promises.shift_invariant
    cast, *differences = source.remarks
    assert cast == "the weights are bfloat16 in the file and are used as float32"
    # where transformers computes something else, it is said
    assert len(differences) == (name in ("phi3-longrope-forcausallm", "gemma2-forcausallm"))
    assert source.inputs[2].axes[1] == 2
    assert [spec.name for spec in source.inputs] == [
        "input_ids",
        "attention_mask",
        *(f"past_key_values.{i}.{what}" for i in range(2) for what in ("key", "value")),
        "position_ids",
    ]


# -- rotations -------------------------------------------------------------------------------------

LISTS = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 5.0, 9.0]}
TYPES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("default", "rope", {}, {}),
    ("linear", "rope-linear", {"factor": 3.0}, {}),
    ("dynamic", "rope-dynamic", {"factor": 3.0}, {"max_position_embeddings": 5}),
    ("yarn", "rope-yarn", {"factor": 4.0, "original_max_position_embeddings": 16}, {}),
    (
        "llama3",
        "rope-llama3",
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 32},
        {},
    ),
    ("longrope", "rope-longrope", LISTS, {"max_position_embeddings": 20, "original_max_position_embeddings": 5}),
    ("su", "rope-longrope", LISTS, {"max_position_embeddings": 20, "original_max_position_embeddings": 5}),
    ("proportional", "rope-proportional", {"partial_rotary_factor": 0.5}, {"transformers_version": "5.0.0"}),
]


@pytest.mark.parametrize(("kind", "encoding", "values", "beside"), TYPES, ids=[row[0] for row in TYPES])
def test_every_type_in_the_spellings_of_transformers_4_and_5(
    copy: Copy, kind: str, encoding: str, values: dict[str, Any], beside: dict[str, Any]
) -> None:
    directory = copy(LLAMA)
    plain = read(directory)
    configure(directory, rope_theta=30.0, rope_scaling={"type": kind, **values}, **beside)
    first = read(directory)
    assert first.encoding is not None
    assert first.encoding.name == encoding
    assert first.encoding.parameters["base"] == 30.0
    assert first.limits.length_dependent == (kind in ("dynamic", "longrope", "su"))
    assert not same(first, plain)
    configure(directory, rope_scaling={"rope_type": kind, **values})
    assert same(read(directory), first)
    table = {"rope_type": kind, "rope_theta": 30.0, **values}
    configure(directory, rope_theta=..., rope_scaling=..., rope_parameters=table)
    assert same(read(directory), first)
    configure(directory, rope_parameters={"full_attention": table, "sliding_attention": {"rope_type": "default"}})
    assert same(read(directory), first)
    if kind != "default":
        configure(directory, rope_parameters={"rope_type": "default", "rope_theta": 30.0})
        assert not same(read(directory), first)


def test_gemma_3_in_the_spelling_of_transformers_5(copy: Copy) -> None:
    directory = copy("gemma3-forcausallm")
    old = read(directory)
    near, far = (
        {"rope_type": "default", "rope_theta": 50.0},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0},
    )
    unset: dict[str, Any] = dict.fromkeys(
        ("rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern"), ...
    )
    configure(directory, **unset, rope_parameters={"full_attention": far, "sliding_attention": near})
    assert same(read(directory), old)
    configure(directory, rope_parameters={"full_attention": far, "sliding_attention": near | {"rope_theta": 51.0}})
    assert not same(read(directory), old)
    configure(directory, rope_parameters={"full_attention": far | {"factor": 2.0}, "sliding_attention": near})
    assert not same(read(directory), old)


def test_gemma_3_by_pattern_is_gemma_3_by_layer_types(copy: Copy) -> None:
    directory = copy("gemma3-forcausallm")
    old = read(directory)
    configure(directory, layer_types=...)
    assert same(read(directory), old)
    configure(directory, sliding_window_pattern=1)
    assert not same(read(directory), old)


@pytest.mark.parametrize("name", ["gemma2-forcausallm", "qwen2-forcausallm"])
def test_layers_with_a_window_where_the_file_does_not_list_them(copy: Copy, name: str) -> None:
    directory = copy(name)
    old = read(directory)
    configure(directory, layer_types=...)
    assert same(read(directory), old)
    configure(directory, layer_types=["full_attention", "full_attention"])
    assert not same(read(directory), old)


def test_a_window_around_longrope_depends_on_the_length_too(copy: Copy) -> None:
    directory = copy("phi3-longrope-forcausallm")
    configure(directory, sliding_window=12)
    source = read(directory)
    assert source.encoding is not None
    assert source.encoding.name == "rope-longrope+local-window"
    assert source.limits.length_dependent
    assert source.limits.boundaries == [1, 12, 20]
    ids = tokens(1, 33)
    assert (in_calls(source, ids, [19, 14]) - logits(source, ids)).abs().max() > 1e-3


def test_phi_3_in_its_spellings(copy: Copy) -> None:
    directory = copy("phi3-longrope-forcausallm")
    ids = tokens(1, 33)
    wanted = logits(read(directory), ids)

    def got(**values: Any) -> torch.Tensor:
        configure(directory, **values)
        return logits(read(directory), ids)

    lists = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
    for early in ("su", "yarn"):
        assert torch.equal(got(rope_scaling={"type": early, **lists}), wanted)
    table = {"rope_type": "longrope", "rope_theta": 60.0, "partial_rotary_factor": 0.7, **lists}
    unset = dict.fromkeys(("rope_theta", "rope_scaling", "partial_rotary_factor"), ...)
    assert torch.equal(got(**unset, rope_parameters=table), wanted)
    inside = table | {"original_max_position_embeddings": 20, "factor": 4.0}
    assert torch.equal(got(rope_parameters=inside), wanted)
    # without a word of the original length it is 4096: no row is long, and nothing is scaled
    assert (got(rope_parameters=table, original_max_position_embeddings=...) - wanted).abs().max() > 1e-3
    configure(directory, rope_parameters=inside)
    assert "original_max_position_embeddings = 20 in rope_parameters and nothing beside it" in refusal(directory)


def test_longrope_looks_at_every_row_alone() -> None:
    source = read(GOLDEN / "phi3-longrope-forcausallm")
    ids = tokens(2, 33)
    mask = torch.ones_like(ids)
    mask[1, :22] = 0
    both = logits(source, ids, mask)
    agree(both[0], logits(source, ids[:1])[0], "model", np.float64)
    agree(both[1, 22:], logits(source, ids[1:, 22:])[0], "model", np.float64)


def test_the_rotated_share_stands_beside_the_table_or_in_it(copy: Copy) -> None:
    directory = copy("stablelm-forcausallm")
    old = read(directory)
    table = {"rope_type": "default", "rope_theta": 60.0, "partial_rotary_factor": 0.5}
    configure(directory, partial_rotary_factor=..., rope_theta=..., rope_parameters=table)
    assert same(read(directory), old)
    configure(directory, rope_parameters=table | {"partial_rotary_factor": 1.0})
    whole = read(directory)
    assert not same(whole, old)


@pytest.mark.parametrize(("name", "share"), [("phi-forcausallm", 0.5), ("stablelm-parallel-forcausallm", 0.25)])
def test_the_rotated_share_where_the_file_has_none(copy: Copy, name: str, share: float) -> None:
    directory = copy(name)
    configure(directory, num_attention_heads=3, num_key_value_heads=1, qk_layernorm=False, partial_rotary_factor=...)
    change(directory, lambda tensors: _heads_of_eight(tensors))
    source = read(directory)
    assert source.encoding is not None
    assert source.encoding.parameters["rotary_dim"] == 8 * share


def _heads_of_eight(tensors: Tensors) -> None:
    """Three heads of eight channels, of which all share keys and values; without norms of heads."""
    for name in list(tensors):
        if "k_proj" in name or "v_proj" in name:
            tensors[name] = torch.zeros(8, *tensors[name].shape[1:])
        if "_layernorm." in name and "self_attn" in name:
            del tensors[name]


def test_every_fourth_layer_does_not_rotate_where_nothing_is_said() -> None:
    said = SimpleNamespace(values={}, size=lambda _key, default: default)
    assert _rotates(said, 9) == [True, True, True, False, True, True, True, False, True]  # type: ignore[arg-type]


def test_layers_without_positions_in_both_spellings(copy: Copy) -> None:
    directory = copy("smollm3-forcausallm")
    source = read(directory)
    assert isinstance(source.module, DecoderModel)
    assert [isinstance(encoding, NoPE) for encoding in source.module.decoder.encodings] == [False, True]
    configure(directory, no_rope_layers=...)
    assert same(read(directory), source)
    configure(directory, no_rope_layers=[0, 1])
    turned = read(directory)
    assert not same(turned, source)
    assert turned.encoding is not None
    assert turned.encoding.name == "nope"


def test_a_window_in_layers_without_positions(copy: Copy) -> None:
    directory = copy("smollm3-forcausallm")
    source = read(directory)
    configure(directory, use_sliding_window=True, sliding_window=4, layer_types=...)
    local = read(directory)
    assert local.limits.boundaries == [1, 4]
    assert not same(local, source)


# -- windows, caps, norms --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reach"), [("mistral-forcausallm", 12), ("phi3-forcausallm", 22)])
def test_two_layers_with_windows_see_so_far(name: str, reach: int) -> None:
    source = read(GOLDEN / name)
    ids = tokens(1, 33)
    other = ids.clone()
    other[0, 3] = ids[0, 3] % 19 + 3
    moved = (logits(source, ids) - logits(source, other)).abs().amax(-1)[0]
    assert [bool(size > 1e-9) for size in moved] == [3 <= i <= 3 + reach for i in range(33)]


@pytest.mark.parametrize("name", ["mistral-forcausallm", "gemma3-forcausallm", "qwen3-forcausallm", "phi-forcausallm"])
def test_a_prompt_and_steps_give_what_one_pass_gives(name: str) -> None:
    source = read(GOLDEN / name)
    ids = tokens(2, 23)
    agree(in_calls(source, ids, [9, 1, 1, 8, 1, 3]), logits(source, ids), "model", np.float64)


def test_across_the_original_length_calls_are_not_one_pass() -> None:
    """Keys are kept as they were rotated: that is why the parity grid makes the same calls in float64."""
    source = read(GOLDEN / "phi3-longrope-forcausallm")
    ids = tokens(1, 33)
    whole = logits(source, ids)
    agree(in_calls(source, ids[:, :20], [9, 11]), logits(source, ids[:, :20]), "model", np.float64)
    assert (in_calls(source, ids, [19, 14]) - whole).abs().max() > 1e-3


def test_caps_of_scores_and_logits(copy: Copy) -> None:
    directory = copy("gemma2-forcausallm")
    ids = tokens(2, 23)
    source = read(directory)
    found = logits(source, ids)
    assert 2.5 < found.abs().max() < 3
    configure(directory, final_logit_softcapping=None)
    uncapped = logits(read(directory), ids)
    agree(3 * (uncapped / 3).tanh(), found, "model", np.float64)
    configure(directory, attn_logit_softcapping=None)
    free = logits(read(directory), ids)
    assert (free - uncapped).abs().max() > 0.1
    configure(directory, attn_logit_softcapping=1e6)
    agree(logits(read(directory), ids), free, "rounded", np.float32)


def test_a_gemma_without_a_word_of_caps_has_its_familys(copy: Copy) -> None:
    directory = copy("gemma2-forcausallm")
    configure(directory, attn_logit_softcapping=..., final_logit_softcapping=..., query_pre_attn_scalar=...)
    model = read(directory).module
    assert isinstance(model, DecoderModel)
    config = model.decoder.config
    attention = config.layer.attention
    assert (attention.score_cap, config.head.cap, attention.scale_size) == (50.0, 30.0, 256.0)


def test_gemmas_gelu_is_the_approximation(copy: Copy) -> None:
    """Released files say "gelu", and were made with the approximation."""
    directory = copy("gemma-forcausallm")
    old = read(directory)
    configure(directory, hidden_act="gelu")
    assert same(read(directory), old)
    configure(directory, hidden_activation="relu")  # transformers reads hidden_act alone
    assert same(read(directory), old)
    configure(directory, hidden_act="relu")
    assert not same(read(directory), old)


def test_rms_factors_with_an_offset_are_not_rounded_to_half_precision() -> None:
    """1 + weight has no place in float16 for a small weight."""
    norm = RMSNorm(4, eps=1e-6, offset=1.0).to(torch.float16)
    norm.weight.data.fill_(2**-12)
    agree(norm(torch.full((1, 4), 8.0)), np.full((1, 4), 1 + 2**-12), "rounded", np.float32)


def test_every_head_has_its_own_factors() -> None:
    norm = LayerNormOfHeads(3, 5, eps=1e-5)
    for head, weight in enumerate(norm.weights):
        weight.data.fill_(head + 1.0)
    x = torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(3))
    wanted = torch.nn.functional.layer_norm(x, (5,), eps=1e-5) * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    agree(norm(x), wanted, "operator", np.float32)


# -- weights ---------------------------------------------------------------------------------------


def test_the_head_may_be_the_embeddings(copy: Copy) -> None:
    directory = copy("llama-llama3-forcausallm")
    tied = read(directory)
    change(directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert same(read(directory), tied)
    configure(directory, tie_word_embeddings=False)
    assert same(read(directory), tied)
    change(directory, lambda t: t.update({"lm_head.weight": -t["lm_head.weight"]}))
    assert not same(read(directory), tied)
    configure(directory, tie_word_embeddings=True)
    assert "differ in the file" in refusal(directory)
    configure(directory, tie_word_embeddings=False)
    change(directory, lambda t: t.pop("lm_head.weight"))
    assert "needed ones are not in the file (lm_head.weight)" in refusal(directory)


def test_features_leave_the_head_out(copy: Copy) -> None:
    directory = copy(LLAMA)
    states = outputs(read(directory, "features"))[0]
    assert states.shape == (2, 9, 20)
    assert any("language-model head" in remark for remark in read(directory, "features").remarks)

    def strip(tensors: Tensors) -> None:
        del tensors["lm_head.weight"]
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    change(directory, strip)
    configure(directory, architectures=["LlamaModel"])
    bare = read(directory)
    assert bare.task == "features"
    assert torch.equal(outputs(bare)[0], states)


def test_old_files_hold_frequencies_which_are_computed(copy: Copy) -> None:
    directory = copy(LLAMA)
    old = read(directory)
    change(directory, lambda t: t.update({"model.layers.1.self_attn.rotary_emb.inv_freq": torch.zeros(3)}))
    assert same(read(directory), old)
    change(directory, lambda t: t.update({"model.layers.2.self_attn.rotary_emb.inv_freq": torch.zeros(3)}))
    assert "model.layers.2.self_attn.rotary_emb.inv_freq" in refusal(directory)


def test_fused_maps_are_read_in_order(copy: Copy) -> None:
    """Query, key, value; gate before up."""
    directory = copy("phi3-forcausallm")
    model = read(directory).module
    assert isinstance(model, DecoderModel)
    held: dict[str, torch.Tensor] = {}
    change(directory, lambda tensors: held.update(tensors))
    ours = dict(model.decoder.layers[1].named_parameters())
    parts = [ours[f"attention.{name}.weight"].data for name in ("query", "key", "value")]
    assert [len(part) for part in parts] == [24, 8, 8]
    assert torch.equal(torch.cat(parts), held["model.layers.1.self_attn.qkv_proj.weight"].float())
    both = torch.cat([ours["feedforward.inner.weight"].data, ours["feedforward.gate.weight"].data])
    assert torch.equal(both, held["model.layers.1.mlp.gate_up_proj.weight"].float())


@pytest.mark.parametrize("value", [None, -1, 23, ...])
def test_a_padding_id_outside_the_vocabulary_is_none(copy: Copy, value: object) -> None:
    directory = copy(LLAMA)
    configure(directory, pad_token_id=value)
    assert read(directory).inputs[0].padding == 0


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        (LLAMA, {"num_local_experts": 8}, "num_local_experts = 8: a mixture of experts"),
        (LLAMA, {"partial_rotary_factor": 0.67}, "4 of 6 channels to rotate; llama rotates whole heads"),
        (LLAMA, {"rope_scaling": {"rope_type": "mrope"}}, "unknown rope_type 'mrope'"),
        (LLAMA, {"rope_scaling": {"rope_type": "linear"}}, "'linear' needs factor"),
        (LLAMA, {"rope_parameters": {"sliding_attention": {"rope_theta": 3.0}}}, "none for layers of type"),
        (LLAMA, {"num_key_value_heads": 4}, "kv_heads must divide heads=6"),
        (LLAMA, {"head_dim": 5}, "must be an even number"),
        (LLAMA, {"hidden_act": "xielu"}, "xielu"),
        (LLAMA, {"rms_norm_eps": 0}, "rms_norm_eps = 0"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (LLAMA, {"auto_map": {"AutoModel": "x.y"}}, "auto_map"),
        (LLAMA, {"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        (LLAMA, {"model_type": "gemma3"}, "gemma3_text"),
        ("mistral-forcausallm", {"sliding_window": 0}, "sliding_window = 0"),
        ("mistral-forcausallm", {"layer_types": ["full_attention", "sliding_attention"]}, "one kind of layer"),
        ("qwen2-forcausallm", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("qwen2-forcausallm", {"layer_types": ["full_attention"]}, "num_hidden_layers = 2"),
        ("qwen2-forcausallm", {"use_sliding_window": False}, "no sliding_window in use"),
        ("qwen3-forcausallm", {"head_dim": 4}, "self_attn.q_proj.weight is [36, 20], needed [24, 20]"),
        ("phi3-longrope-forcausallm", {"partial_rotary_factor": 1.0}, "short_factor has 2 numbers, 3 are needed"),
        ("smollm3-forcausallm", {"no_rope_layers": [1]}, "no_rope_layers = [1]"),
        ("smollm3-forcausallm", {"no_rope_layers": [1, 2]}, "1 for a layer that rotates"),
        ("gemma2-forcausallm", {"attn_logit_softcapping": -1}, "attn_logit_softcapping = -1"),
        ("gemma2-forcausallm", {"query_pre_attn_scalar": "x"}, "query_pre_attn_scalar = 'x'"),
        ("gemma3-forcausallm", {"use_bidirectional_attention": True}, "nothing can be generated"),
        ("stablelm-forcausallm", {"partial_rotary_factor": 0.1}, "an even number from 2 on, got 0"),
        ("phi-forcausallm", {"qk_layernorm": False}, "q_layernorm"),
    ],
)
def test_what_is_not_computed_is_refused(copy: Copy, name: str, values: dict[str, Any], words: str) -> None:
    directory = copy(name)
    configure(directory, **values)
    sentence = refusal(directory)
    assert words in sentence
    assert str(directory) in sentence


def test_granite_has_four_multipliers(copy: Copy) -> None:
    directory, ids = copy("granite-forcausallm"), tokens(1, 9)
    before = logits(read(directory), ids)
    for key in ("embedding_multiplier", "attention_multiplier", "residual_multiplier"):
        configure(directory, **{key: 0.9})
        after = logits(read(directory), ids)
        assert (after - before).abs().max() > 0.01 * before.abs().max()
        before = after
    configure(directory, logits_scaling=5.0)
    agree_each(logits(read(directory), ids), before / 2, "rounded", np.float64)
    configure(directory, logits_scaling=0)
    assert "says logits_scaling = 0; it must be a number above 0" in refusal(directory)


def test_olmo2_normalises_all_heads_as_one(copy: Copy) -> None:
    directory = copy("olmo2-forcausallm")
    change(directory, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(6)}))
    assert "q_norm.weight is [6], needed [36]" in refusal(directory)


def test_starcoder2_without_biases_and_window(copy: Copy) -> None:
    directory = copy("starcoder2-forcausallm")
    configure(directory, use_bias=False, sliding_window=None)
    change(
        directory,
        lambda tensors: [tensors.pop(name) for name in list(tensors) if name.endswith(("proj.bias", "c_fc.bias"))],
    )
    source = read(directory)
    assert source.encoding is not None
    assert source.encoding.name == "rope"
    assert not [name for name, _ in source.module.named_parameters() if name.endswith(("query.bias", "inner.bias"))]
