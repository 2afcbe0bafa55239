"""Every pooling, projection and text rule of sentence-transformers, on an encoder and on decoders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import configure, outputs, read, refusal
from safetensors.torch import save_file
from test_embedder_folders import NORMALIZE, POOLING, TRANSFORMER, sentences

from posexport.nn.pooling import MODES, SentenceEmbedding
from posexport.sources.source import Source
from tests.tolerances import agree

Copy = Callable[[str], Path]
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
#: of rows padded on the right, on both sides, on the left, and not
MASKS = ("1110000", "0011100", "0000011", "1111111")


def by_hand(states_TC: np.ndarray, mode: str) -> np.ndarray:
    """Of the tokens of one text, padding left out."""
    count = len(states_TC)
    if mode == "weightedmean":
        return np.average(states_TC, axis=0, weights=np.arange(1, count + 1))
    if mode == "mean_sqrt_len_tokens":
        return states_TC.sum(0) / count**0.5
    found: np.ndarray = {"max": states_TC.max(0), "mean": states_TC.mean(0), "lasttoken": states_TC[-1]}[mode]
    return found


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "cls"])
def test_a_pooling_reads_the_tokens_that_the_mask_keeps(mode: Any) -> None:
    mask = torch.tensor([[int(bit) for bit in row] for row in MASKS])
    states = torch.randn(len(MASKS), 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 2
    head = SentenceEmbedding(5, [mode])
    got = head(states, mask)[1]
    for row, kept in enumerate(mask.bool()):
        agree(got[row], torch.from_numpy(by_hand(states[row, kept].numpy(), mode)), "rounded", torch.float64)
    assert torch.equal(head(states[3:], None)[1], got[3:])


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_is_attended_to_and_not_pooled(mode: Any) -> None:
    mask = torch.tensor([[int(bit) for bit in row] for row in MASKS])
    prompt = mask * (mask.cumsum(1) <= torch.tensor([[1], [2], [0], [4]]))
    states = torch.randn(len(MASKS), 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) - 2
    head = SentenceEmbedding(5, [mode])
    got = head(states, mask, prompt)[1]
    for row, pooled in enumerate((mask == 1) & (prompt == 0)):
        text = states[row, pooled].numpy()
        if mode == "weightedmean":
            numbers = mask[row].cumsum(0)[pooled].numpy()
            wanted = np.average(text, axis=0, weights=numbers)
        else:
            wanted = text[0] if mode == "cls" else by_hand(text, mode)
        agree(got[row], torch.from_numpy(wanted), "rounded", torch.float64)
    nothing = head(states, mask, mask)[1]
    assert torch.equal(nothing, states[:, 0] if mode == "cls" else torch.zeros(len(MASKS), 5, dtype=torch.float64))


def test_a_model_that_leaves_prompts_out_has_an_input_for_them(bert: Path) -> None:
    sentences(bert, [TRANSFORMER, POOLING, NORMALIZE], pooling_mode_cls_token=True, include_prompt=False)
    (bert / "config_sentence_transformers.json").write_text('{"prompts": {"q": "Q: "}, "default_prompt_name": "q"}')
    source = read(bert)
    assert source.text_rules is not None
    assert not source.text_rules.prompt_pooled
    assert (source.inputs[-1].name, source.inputs[-1].default) == ("prompt_mask", 0)
    assert not source.promises.reads_first_token
    ids = torch.arange(5, 5 + 2 * 9).view(2, 9)
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    states, first = outputs(source)
    marked = torch.zeros_like(ids)
    marked[:, :2] = 1
    with torch.inference_mode():
        same_states, third = source.module(**feeds, prompt_mask=marked)
    assert torch.equal(states, same_states)
    agree(first, torch.nn.functional.normalize(states[:, 0], dim=-1), "operator", torch.float32)
    agree(third, torch.nn.functional.normalize(states[:, 2], dim=-1), "operator", torch.float32)


def test_poolings_side_by_side_then_projections(bert: Path) -> None:
    states = outputs(read(bert))[0]
    flags = {"pooling_mode_lasttoken": True, "pooling_mode_cls_token": True}
    second = {**DENSE, "path": "3_Dense"}
    sentences(bert, [TRANSFORMER, POOLING, DENSE, second, NORMALIZE], **flags)
    first = {"weight": torch.randn(40, 40), "bias": torch.randn(40)}
    last = {"weight": torch.randn(6, 40)}
    dense(bert / "2_Dense", first, use_residual=True)
    dense(bert / "3_Dense", last, bias=False, activation_function="torch.nn.modules.linear.Identity")
    pooled = torch.cat([states[:, 0], states[:, -1]], -1)
    middle = torch.tanh(pooled @ first["weight"].T + first["bias"]) + pooled
    wanted = middle @ last["weight"].T
    wanted = wanted / wanted.norm(dim=-1, keepdim=True)
    source = read(bert)
    agree(outputs(source)[1], wanted, "operator", torch.float32)
    assert source.outputs[1].axes == ["batch_size", 6]


def dense(folder: Path, tensors: dict[str, torch.Tensor], *, pickled: bool = False, **config: Any) -> None:
    folder.mkdir()
    out, inner = tensors["weight"].shape
    (folder / "config.json").write_text(json.dumps({"in_features": inner, "out_features": out} | config))
    named = {f"linear.{name}": tensor for name, tensor in tensors.items()}
    if pickled:
        torch.save(named, folder / "pytorch_model.bin")
    else:
        save_file(named, folder / "model.safetensors")


def test_a_projection_stored_as_a_pickle_is_read_when_allowed(bert: Path) -> None:
    sentences(bert, [TRANSFORMER, POOLING, DENSE], pooling_mode_mean_tokens=True)
    tensors = {"weight": torch.randn(3, 20), "bias": torch.randn(3)}
    dense(bert / "2_Dense", tensors, pickled=True)
    assert "2_Dense" not in {spec.name for spec in read(bert, "features").outputs}
    assert "use --allow-pickle" in refusal(bert)
    wanted = torch.tanh(outputs(read(bert, "features"))[0].mean(1) @ tensors["weight"].T + tensors["bias"])
    agree(outputs(read(bert, allow_pickle=True))[1], wanted, "operator", torch.float32)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"in_features": 21}, "says in_features = 21; what comes before has 20"),
        ({"activation_function": "os.system"}, "says activation_function = 'os.system'"),
        ({"activation_function": "torch.nn.modules.activation.Hardtanh"}, "supported are Identity, GELU"),
        ({"module_input_name": "token_embeddings"}, "projects token_embeddings to token_embeddings"),
        ({"bias": False}, "not used (2_Dense/linear.bias)"),
        ({"out_features": 4}, "2_Dense/linear.weight is [3, 20], needed [4, 20]"),
    ],
)
def test_what_a_projection_may_not_say(bert: Path, config: dict[str, Any], said: str) -> None:
    sentences(bert, [TRANSFORMER, POOLING, DENSE], pooling_mode_mean_tokens=True)
    dense(bert / "2_Dense", {"weight": torch.randn(3, 20), "bias": torch.randn(3)}, **config)
    assert said in refusal(bert)


@pytest.mark.parametrize("name", ["qwen3-forcausallm", "mistral-forcausallm", "gemma3-forcausallm", "gpt2-lmheadmodel"])
def test_a_decoder_pools_its_last_token_wherever_the_padding_is(copy: Copy, name: str) -> None:
    directory = copy(name)
    width = json.loads((directory / "config.json").read_text()).get("hidden_size", 20)
    sentences(directory, [TRANSFORMER, POOLING], pooling_mode_lasttoken=True, word_embedding_dimension=width)
    source = read(directory)
    assert [spec.name for spec in source.inputs] == ["input_ids", "attention_mask"]
    assert not source.limits.kv_cache
    assert source.promises.shift_invariant
    assert source.promises.causal
    ids = torch.arange(5, 10)[None]
    alone = pooled(source, ids, torch.ones_like(ids))
    padding = torch.zeros(1, 3, dtype=torch.int64)
    for order in ((ids, padding), (padding, ids)):
        mask = torch.cat([part * 0 + (part is ids) for part in order], 1)
        agree(pooled(source, torch.cat(order, 1), mask), alone, "operator", torch.float32)
    assert not torch.equal(pooled(source, ids.flip(1), torch.ones_like(ids)), alone)


def pooled(source: Source, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = source.module(input_ids=ids, attention_mask=mask)[1]
    return found


def test_the_rules_of_texts_are_read(bert: Path) -> None:
    sentences(bert, [TRANSFORMER, POOLING], pooling_mode_mean_tokens=True)
    rules = read(bert).text_rules
    assert rules is not None
    assert rules.max_length == 33
    (bert / "tokenizer_config.json").write_text('{"model_max_length": 21}')
    rules = read(bert).text_rules
    assert rules is not None
    assert rules.max_length == 21
    (bert / "sentence_bert_config.json").write_text('{"max_seq_length": 25, "do_lower_case": true}')
    settings = {"prompts": {"q": "Query: "}, "default_prompt_name": "q", "truncate_dim": 4, "similarity_fn_name": "dot"}
    (bert / "config_sentence_transformers.json").write_text(json.dumps(settings))
    rules = read(bert).text_rules
    assert rules is not None
    assert (rules.max_length, rules.lower_case) == (25, True)
    assert (rules.prompts, rules.default_prompt, rules.truncate_dim) == ({"q": "Query: "}, "q", 4)
    assert rules.similarity == "dot"
    assert read(bert, "features").text_rules is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"default_prompt_name": "x"}, "default_prompt_name = 'x'; it must be one of its prompts: q"),
        ({"prompts": ["x"]}, "prompts = ['x']; it must map names to texts"),
        ({"truncate_dim": 0}, "truncate_dim = 0"),
        ({"similarity_fn_name": "l3"}, "similarity_fn_name = 'l3'; known: cosine"),
    ],
)
def test_rules_that_are_none(bert: Path, values: dict[str, Any], said: str) -> None:
    sentences(bert, [TRANSFORMER, POOLING], pooling_mode_mean_tokens=True)
    (bert / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"q": "Query: "}}))
    assert read(bert).text_rules is not None
    configure(bert, "config_sentence_transformers.json", **values)
    assert said in refusal(bert)


def test_states_that_are_not_of_tokens_are_not_pooled(copy: Copy) -> None:
    directory = copy("swin-model")
    sentences(directory, [TRANSFORMER, POOLING], pooling_mode_mean_tokens=True)
    assert "the states of swin are not pooled here" in refusal(directory)


@pytest.mark.parametrize(("strategy", "activation"), [("max", "relu"), ("sum", "log1p_relu")])
def test_weights_of_words(masked: Path, strategy: str, activation: str) -> None:
    ids = torch.arange(5, 5 + 2 * 9).view(2, 9)
    mask = (torch.arange(9) < torch.tensor([[9], [4]])).to(torch.int64)
    with torch.inference_mode():
        logits = read(masked).module(input_ids=ids, attention_mask=mask)[0]
    package = "sentence_transformers.sparse_encoder.models"
    modules = [{"path": "", "type": f"{package}.MLMTransformer"}]
    modules.append({"path": "1_SpladePooling", "type": f"{package}.SpladePooling"})
    (masked / "modules.json").write_text(json.dumps(modules))
    (masked / "1_SpladePooling").mkdir()
    config = {"pooling_strategy": strategy, "activation_function": activation}
    (masked / "1_SpladePooling" / "config.json").write_text(json.dumps(config))
    weights = torch.log(1 + logits.clamp(min=0))
    if activation == "log1p_relu":
        weights = torch.log(1 + weights)
    weights[mask == 0] = 0
    source = read(masked)
    with torch.inference_mode():
        got = source.module(input_ids=ids, attention_mask=mask)[0]
    agree(got, weights.amax(1) if strategy == "max" else weights.sum(1), "operator", torch.float32)
    assert [spec.name for spec in source.outputs] == ["sentence_embedding"]
    configure(masked, "1_SpladePooling/config.json", pooling_strategy="median")
    assert "pooling_strategy = 'median'" in refusal(masked)
