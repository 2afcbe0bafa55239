"""Cross attentions as outputs of encoder-decoders: equal to transformers', proven, with any client's graphs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import posexport
from ci.answers.tiny_whisper import tiny_whisper
from posexport.conversion.export.build import build
from posexport.errors import PosexportError
from posexport.proof.choose import ProofOptions, prove_model
from posexport.run.cache import decoder_interface
from posexport.sources.builtin import builtin_source
from posexport.sources.layer_outputs import with_outputs
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source
from tests.models.test_layer_outputs import swapped
from tests.small import recipe, shared
from tests.tolerances import agree

HEADS = [[1, 2], [0, 1]]
SIZES = {"d_model": 24, "vocab_size": 61, "decoder_start_token_id": 2, "pad_token_id": 0}
#: types of transformers, with their names of sizes
TYPES: dict[str, dict[str, Any]] = {
    "t5": {"num_layers": 2, "num_decoder_layers": 2, "num_heads": 3, "d_kv": 8, "d_ff": 20},
    "bart": {
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 3 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 20 for side in ("encoder", "decoder")},
        "max_position_embeddings": 40,
    },
}


def whisper(into: Path, *outputs: str, **generation: Any) -> Source:
    return with_outputs(load_source(str(tiny_whisper(into, 0, **generation)), LoadOptions()), outputs)


def named(source: Source, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Computes the outputs in float64, by name."""
    with torch.inference_mode():
        return dict(zip((spec.name for spec in source.outputs), source.module.double()(**inputs), strict=True))


@pytest.mark.all(but=("[t5]",))
@pytest.mark.parametrize("kind", TYPES)
def test_they_are_transformers_outputs(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **TYPES[kind]})
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    source = with_outputs(load_source(str(tmp_path), LoadOptions()), ["cross_attentions:1,0.2"])
    ids, mask = torch.randint(3, 61, (2, 11), generator=torch.Generator().manual_seed(1)), torch.ones(2, 11).long()
    mask[1, 7:], ids[1, 7:] = 0, 0
    decoder = {"decoder_input_ids": torch.tensor([[2, 7, 9], [2, 50, 4]])}
    with torch.inference_mode():
        right = model.double()(input_ids=ids, attention_mask=mask, output_attentions=True, **decoder)
    got = named(source, input_ids=ids, attention_mask=mask, **decoder)
    agree(got["cross_attentions.1"].numpy(), right.cross_attentions[1], "model in float32", np.float32)
    agree(got["cross_attentions.0.2"].numpy(), right.cross_attentions[0][:, 2], "model in float32", np.float32)


def test_whispers_are_transformers_outputs_at_its_alignment_heads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source = whisper(tmp_path, "cross_attentions", alignment_heads=HEADS)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="eager")
    features = torch.randn(2, 8, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs = {"input_features": features, "decoder_input_ids": torch.tensor([[33, 34, 35, 3], [33, 9, 1, 2]])}
    with torch.inference_mode():
        right = model.double().eval()(output_attentions=True, **inputs).cross_attentions
    got = named(source, **inputs)
    assert [name for name in got if name.startswith("cross")] == ["cross_attentions.1.2", "cross_attentions.0.1"]
    for layer, head in HEADS:
        agree(got[f"cross_attentions.{layer}.{head}"].numpy(), right[layer][:, head], "model in float32", np.float32)


@pytest.mark.parametrize(
    ("text", "generation", "said"),
    [
        ("cross_attentions", {}, "needs alignment_heads in generation_config.json, and"),
        ("cross_attentions", {"alignment_heads": [[2, 0]]}, r"cross_attentions of .* must be from 0 to 1, got 2"),
        ("cross_attentions", {"alignment_heads": [2, 0]}, "must be pairs of a layer and a head"),
        ("cross_attentions:0.3", {}, "must be from 0 to 2, got 3 in cross_attentions.0.3"),
    ],
)
def test_heads_that_do_not_exist_are_refused(text: str, generation: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=said):
        whisper(tmp_path, text, **generation)


def test_models_without_cross_attention_are_not_asked_for_heads() -> None:
    source = builtin_source("decoder-rope", task=None, settings_given=shared("decoder-rope"))
    with pytest.raises(PosexportError, match="--outputs cross_attentions is for encoder-decoders"):
        with_outputs(source, ["cross_attentions"])


def test_a_cache_stays_a_cache() -> None:
    before = builtin_source("encoder-decoder-rope", task=None, settings_given=shared("encoder-decoder-rope"))
    source = with_outputs(before, ["cross_attentions:0"])
    mine, plain = (decoder_interface(each.inputs, each.outputs) for each in (source, before))
    assert mine == plain
    assert mine is not None
    encoder, decoder = source.parts
    assert "cross_attentions.0" in {spec.name for spec in decoder.spec.outputs} - {s.name for s in encoder.spec.outputs}


@pytest.mark.all
def test_the_proof_covers_them_and_finds_another_head(tmp_path: Path) -> None:
    source = builtin_source("encoder-decoder-rope", task=None, settings_given=shared("encoder-decoder-rope"))
    source = with_outputs(source, ["cross_attentions:1,0.2,0.3"])
    for file, graph in source.graphs.items():
        build(graph, tmp_path / file, recipe())
    options = ProofOptions(lengths=[5], threads=1)
    assert (report := prove_model(source, tmp_path, options)).passed, report.describe()
    assert {point.output for point in report.points} >= {spec.name for spec in source.outputs}
    pair = ("cross_attentions.0.2", "cross_attentions.0.3")
    swapped(tmp_path / "decoder_model.onnx", pair).replace(tmp_path / "decoder_model.onnx")
    report = prove_model(source, tmp_path, options)
    assert {point.output for point in report.points if point.verdict == "fail"} == {*pair}


@pytest.mark.all
@pytest.mark.parametrize(
    "options", [{"layout": "optimum"}, {"layout": "transformers.js"}, {"cache": "static"}, {"precision": "int8"}, {}]
)
def test_a_bundle_returns_them(options: dict[str, Any], tmp_path: Path) -> None:
    # weights whose error in float32 is not 2.2 times PyTorch's, as the encoder with those of seed 0 on an EPYC
    folder, bundle = tiny_whisper(tmp_path / "c", 1, alignment_heads=HEADS), tmp_path / "b"
    conversion = posexport.convert(
        str(folder), bundle, outputs=["cross_attentions"], lengths=[9], threads=1, **options
    )
    assert conversion.report is not None
    assert conversion.report.passed, conversion.report.describe()
    features = np.random.default_rng(0).standard_normal((1, 8, 100)).astype(np.float32)
    got = posexport.load(bundle, threads=1).run({"input_features": features, "decoder_input_ids": [[33, 34, 35]]})
    assert got["cross_attentions.1.2"].shape == (1, 3, 50)
    agree(got["cross_attentions.1.2"].sum(-1), np.ones((1, 3)), "model in half precision", np.float16)
    assert json.loads((bundle / "posexport.json").read_text())["recipe"]["outputs"] == ["cross_attentions"]
