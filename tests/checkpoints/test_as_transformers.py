"""Where transformers' code differs from the paper or from config.json (docs/papers-and-code.md; ci/golden).

What is computed, what is remarked, and what --definition released changes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, configure, read
from safetensors.torch import load_file

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings.alibi import Alibi
from posexport.errors import PosexportError
from posexport.run.load import load as open_bundle
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source
from tests.tolerances import agree

FALCON = "falcon-bfloat16-forcausallm"
Copy = Callable[[str], Path]


def as_transformers(directory: Path) -> Source:
    return checkpoint_source(directory, task=None, allow_pickle=False, definition="released")


def logits(source: Source, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    mask = torch.ones_like(ids) if mask is None else mask
    held = {
        spec.name: torch.zeros(len(ids), spec.axes[1], 0, spec.axes[3], dtype=torch.float64)
        for spec in source.inputs
        if spec.role == "cache"
    }
    with torch.inference_mode():
        found: torch.Tensor = source.module.double()(input_ids=ids, attention_mask=mask, **held)[0]
    return found


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def remarked(source: Source, *parts: str) -> bool:
    """One remark has all parts, and no remark has more than a sentence."""
    assert all("\n" not in remark for remark in source.remarks)
    return any(all(part in remark for part in parts) for remark in source.remarks)


@pytest.mark.parametrize(("length", "least"), [(33, 1e-3), (64, 3e-3), (300, 3e-2)])
def test_falcon_rounds_its_alibi_in_transformers(length: int, least: float) -> None:
    """The exact one is off by far more than rounding, the other agrees; `least` guards the page's numbers."""
    stored = load_file(GOLDEN / FALCON / "expected.safetensors")
    ids, wanted = stored[f"none-{length}.input_ids"].long(), stored[f"none-{length}.logits"]
    assert least < error(logits(read(GOLDEN / FALCON), ids), wanted) < 5 * least
    agree(logits(as_transformers(GOLDEN / FALCON), ids), wanted, "frequencies", np.float32)


def test_falcon_says_what_it_computes() -> None:
    plain, code = read(GOLDEN / FALCON), as_transformers(GOLDEN / FALCON)
    assert remarked(plain, "slopes and biases are exact", "bfloat16", "--definition released follows it")
    assert remarked(code, "bfloat16", "so does the bundle")
    assert plain.encoding is not None
    assert code.encoding is not None
    assert (plain.encoding.parameters["variant"], code.encoding.parameters["variant"]) == ("causal", "falcon")
    assert not remarked(read(GOLDEN / "falcon-forcausallm"), "bfloat16 ", "ALiBi")


def test_falcon_counts_padding_on_the_left_as_transformers_does() -> None:
    """Beyond 256 tokens too, where positions themselves are rounded: keys are counted from a row's first token."""
    source = as_transformers(GOLDEN / FALCON)
    ids = torch.randint(3, 23, (1, 300), generator=torch.Generator().manual_seed(1))
    padded, mask = torch.nn.functional.pad(ids, (140, 0)), torch.nn.functional.pad(torch.ones_like(ids), (140, 0))
    agree(logits(source, padded, mask)[:, 140:], logits(source, ids), "model", np.float64)


def test_the_rounded_variant_is_not_the_exact_one() -> None:
    rounded, exact = Alibi(heads=12, variant="falcon"), Alibi(heads=12, variant="bloom")
    assert not rounded.shift_invariant
    assert exact.shift_invariant
    assert rounded.rounded_slopes[0] == 2**-1
    assert rounded.rounded_slopes[8] != rounded.slopes[8]
    assert abs(rounded.rounded_slopes[8] / rounded.slopes[8] - 1) < 2**-8


def test_mpt_takes_another_smallest_slope_in_transformers(copy: Copy) -> None:
    directory = copy("mpt-forcausallm")
    ids = torch.arange(3, 20)[None]
    plain, code = read(directory), as_transformers(directory)
    assert remarked(plain, "2^-6", "alibi_bias_max", "--definition released follows it")
    assert error(logits(code, ids), logits(plain, ids)) > 0.05
    configure(directory, attn_config={"alibi_bias_max": 8, "softmax_scale": 0.3})
    eight = read(directory)
    assert torch.equal(logits(eight, ids), logits(code, ids))
    assert not remarked(eight, "alibi_bias_max")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("t5-activation-forconditionalgeneration", ("dense_act_fn = tanh", "is_gated_act = True")),
        ("umt5-activation-encodermodel", ("dense_act_fn = relu",)),
        ("gemma-activation-forcausallm", ("hidden_activation = 'tanh'", "relu is computed")),
        ("gemma3-softcapping-forcausallm", ("attn_logit_softcapping", "not capped")),
        ("esm-activation-model", ("hidden_act = 'relu'", "gelu is computed")),
        ("esm-formaskedlm", ("token_dropout", "counts padding too")),
        ("gpt2-scaled-lmheadmodel", ("scale_attn_by_inverse_layer_idx", "eager")),
        ("gemma2-forcausallm", ("caps scores at 2", "eager")),
        ("llama-dynamic-forcausallm", ("length of each row", "longest row of the batch")),
        ("phi3-longrope-forcausallm", ("length of each row", "longest row of the batch")),
        ("deberta-forsequenceclassification", ("answered at token 0", "pad texts on the right")),
        ("deberta-v2-forsequenceclassification", ("answered at token 0",)),
        ("modernbert-cls", ("answered at token 0",)),
        ("xlnet-forsequenceclassification", ("last token that is not padding", "stands on the right")),
    ],
)
def test_what_is_remarked(name: str, parts: tuple[str, ...]) -> None:
    assert remarked(read(GOLDEN / name), *parts)


@pytest.mark.parametrize(
    "name",
    [
        "t5-forconditionalgeneration",
        "t5-gated-forconditionalgeneration",
        "gemma-forcausallm",
        "gemma3-forcausallm",
        "esm-fortokenclassification",
        "gpt2-lmheadmodel",
        "llama-forcausallm",
        "deberta-formaskedlm",
        "modernbert-forsequenceclassification",
        "xlnet-model",
        "bloom-forcausallm",
    ],
)
def test_nothing_is_remarked_where_nothing_differs(name: str) -> None:
    assert not remarked(read(GOLDEN / name), "transformers")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "gelu_pytorch_tanh"),
        ({"hidden_act": "gelu"}, "gelu_pytorch_tanh"),
        ({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, "gelu_pytorch_tanh"),
        ({"hidden_act": ..., "hidden_activation": "relu"}, "gelu_pytorch_tanh"),
        ({"hidden_act": "relu", "hidden_activation": None}, "relu"),
    ],
)
def test_the_activation_of_gemma(copy: Copy, given: dict[str, Any], name: str) -> None:
    """As 4.57.6 and 5.23.0 chose when asked, but for "gelu", which 4.57.6 takes to the letter."""
    directory = copy("gemma-forcausallm")
    configure(directory, **given)
    source: Any = read(directory)
    assert source.module.decoder.config.layer.feedforward.activation == name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dense_act_fn": None}, "dense_act_fn = None; it must be a string"),
        ({"dense_act_fn": "prelu"}, "dense_act_fn = 'prelu'"),
        ({"is_gated_act": 1}, "is_gated_act = 1; it must be true or false"),
        ({"feed_forward_proj": "prelu", "dense_act_fn": ...}, "feed_forward_proj = 'prelu'"),
    ],
)
def test_what_t5_may_not_say(copy: Copy, given: dict[str, Any], said: str) -> None:
    directory = copy("t5-forconditionalgeneration")
    configure(directory, **given)
    with pytest.raises(PosexportError) as caught:
        read(directory)
    assert said in str(caught.value)


def test_it_is_for_checkpoints() -> None:
    with pytest.raises(PosexportError, match="--definition is for checkpoints"):
        load_source("decoder-alibi", LoadOptions(definition="released"))


@pytest.mark.all(but=("[cpu]",))
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_the_graph_rounds_as_transformers_does(tmp_path: Path, target: Any) -> None:
    """In ONNX Runtime: at 300 tokens, with padding on the left, and behind a cache that grew in parts."""
    options = ConvertOptions(definition="released", verify=False, target=target)
    convert(str(GOLDEN / FALCON), tmp_path / "bundle", options)
    session = open_bundle(tmp_path / "bundle")
    stored = load_file(GOLDEN / FALCON / "expected.safetensors")
    for point in ("none-17", "none-300", "left-21"):
        ids, mask, wanted = (stored[f"{point}.{name}"] for name in ("input_ids", "attention_mask", "logits"))
        given = {"input_ids": ids.long().numpy(), "attention_mask": mask.long().numpy()}
        got = torch.from_numpy(session.run(given)["logits"]) * mask[..., None]
        agree(got, wanted, "model in float32", np.float32)
    ids, wanted = stored["none-300.input_ids"].long(), stored["none-300.logits"]
    past: dict[str, Any] = {}
    for start, end in ((0, 150), (150, 299), (299, 300)):
        mask = torch.ones(1, end, dtype=torch.int64).numpy()
        out = session.run({"input_ids": ids[:, start:end].numpy(), "attention_mask": mask, **past})
        past = {name.replace("present", "past_key_values"): out[name] for name in out if name.startswith("present")}
        agree(out["logits"], wanted[:, start:end], "model in float32", np.float32)
