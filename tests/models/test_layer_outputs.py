"""Hidden states and attentions as outputs: equal to transformers', proven, and refused where there are none."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import posexport
from posexport.base.options.recipe import CacheName
from posexport.base.spec import TOTAL
from posexport.conversion.export.build import build
from posexport.errors import PosexportError
from posexport.proof.choose import ProofOptions, prove_model
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.reduced.reduction import reduction_of
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.subjects.runner import in_calls
from posexport.run.cache import decoder_interface
from posexport.serve.layouts import genai
from posexport.sources.builtin import builtin_source
from posexport.sources.layer_outputs import parsed, with_outputs
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from tests.small import recipe, shared
from tests.tolerances import agree

SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 40,
    "num_attention_heads": 5,
    "intermediate_size": 24,
    "vocab_size": 61,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
#: types of transformers, with settings in addition to `SIZES`
TYPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "albert": {"embedding_size": 12},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "llama": {"num_key_value_heads": 1},
    "gpt2": {"n_layer": 3, "n_embd": 40, "n_head": 5, "n_inner": 24, "n_positions": 40},
}


def chosen(name: str, *outputs: str, task: str | None = None, layers: int = 2) -> Source:
    """A small built-in model with further outputs."""
    settings = tuple(s for s in shared(name) if not s.startswith("layers="))
    return with_outputs(builtin_source(name, task=task, settings_given=(*settings, f"layers={layers}")), outputs)


def named(source: Source, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Computes the outputs in float64, by name."""
    with torch.inference_mode():
        return dict(zip((spec.name for spec in source.outputs), source.module.double()(**inputs), strict=True))


@pytest.mark.all(but=("[bert]",))
@pytest.mark.parametrize("kind", TYPES)
def test_they_are_transformers_outputs(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **TYPES[kind]})
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    every = ["hidden_states:0,1,2,3", "attentions:0,1,2,2.4"]
    source = with_outputs(load_source(str(tmp_path), LoadOptions()), every)
    ids, mask = torch.randint(3, 61, (2, 11), generator=torch.Generator().manual_seed(1)), torch.ones(2, 11).long()
    mask[1, 7:], ids[1, 7:] = 0, 0
    with torch.inference_mode():
        right = model.double()(input_ids=ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
    got = named(source, input_ids=ids, attention_mask=mask)
    real = mask != 0
    for number, states in enumerate(right.hidden_states):
        agree(got[f"hidden_states.{number}"][real].numpy(), states[real], "model in float32", np.float32)
    for number, attentions in enumerate(right.attentions):
        p_BTHS = got[f"attentions.{number}"].transpose(1, 2)
        agree(p_BTHS[real].numpy(), attentions.transpose(1, 2)[real], "model in float32", np.float32)
    agree(got["attentions.2.4"].numpy(), got["attentions.2"][:, 4], "attention", np.float64)


def test_layers_that_are_not_named_compute_no_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    from posexport.nn import attention

    asked: list[slice] = []
    computed = attention._probabilities

    def noted(x: Any, heads: slice = slice(None)) -> torch.Tensor:
        asked.append(heads)
        return computed(x, heads)

    monkeypatch.setattr(attention, "_attended", lambda x: x.v_BHSD)  # one operator in a graph
    monkeypatch.setattr(attention, "_probabilities", noted)
    ids = torch.arange(7)[None]
    named(chosen("encoder-rope", "hidden_states:1", layers=4), input_ids=ids)
    assert asked == []
    named(chosen("encoder-rope", "attentions:2.3,0", layers=4), input_ids=ids)
    assert asked == [slice(None), slice(3, 4)]


@pytest.mark.parametrize("task", ["text-generation", "features"])
def test_a_cache_stays_a_cache(task: str) -> None:
    source = chosen("decoder-rope", "attentions:1", "hidden_states:0", task=task)
    before = chosen("decoder-rope", task=task)
    mine, plain = (decoder_interface(each.inputs, each.outputs) for each in (source, before))
    assert mine == plain
    assert (mine is not None) == (task == "text-generation")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_calls_with_a_cache_give_those_of_one_call(cache: CacheName) -> None:
    """Later keys, which a call does not have, have no probability."""
    source = with_kv_cache(builtin_source("decoder-rope", task=None, settings_given=shared("decoder-rope")), cache, "at-write")
    source = with_outputs(source, ["attentions:1,0.4", "hidden_states:1"])
    feeds = draw(GridPoint(batch=2, length=7), source.inputs)
    run = PrecisionCopy(source.module, torch.float64, outputs=len(source.outputs))
    whole, joined = (in_calls(run, feeds, source, calls) for calls in ([], [3, 1, 3]))
    for spec, one, other in zip(source.outputs, whole, joined, strict=True):
        agree(other, one, "model", np.float64)
        assert (spec.axes[-1] == TOTAL) == spec.name.startswith("attentions")


def test_clients_read_the_same_sizes_of_the_model() -> None:
    made = [genai.config(chosen("decoder-rope", *outputs), {}) for outputs in ([], ["hidden_states:1", "attentions:0"])]
    assert made[0] == made[1]
    assert made[0]["model"]["decoder"]["hidden_size"] == 40


def swapped(path: Path, *pairs: tuple[str, str]) -> Path:
    """The graph with outputs under each other's names."""
    model = onnx.load(path)
    names = {**dict(pairs), **{other: one for one, other in pairs}}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    wrong = path.with_name("wrong.onnx")
    onnx.save(model, wrong)
    return wrong


@pytest.mark.all
@pytest.mark.parametrize("name", ["encoder-relative-key", "decoder-rope"])
def test_the_proof_covers_them_and_finds_another_layers(name: str, tmp_path: Path) -> None:
    source = chosen(name, "hidden_states:0,1,2", "attentions:0.2,1.2,1")
    build(source, tmp_path / "model.onnx", recipe())
    options = ProofOptions(lengths=[5], threads=1)
    assert (report := prove_model(source, tmp_path / "model.onnx", options)).passed, report.describe()
    assert {point.output for point in report.points} >= {spec.name for spec in source.outputs}
    pairs = [("hidden_states.0", "hidden_states.1"), ("attentions.0.2", "attentions.1.2")]
    report = prove_model(source, swapped(tmp_path / "model.onnx", *pairs), options)
    assert {point.output for point in report.points if point.verdict == "fail"} == {*pairs[0], *pairs[1]}


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decoder-rope", {"cache": "static"}),
        ("decoder-rope", {"target": "cpu"}),
        ("encoder-rope", {"target": "cpu"}),
        ("encoder-alibi", {"precision": "fp16"}),
        ("encoder-t5", {"precision": "int8"}),
    ],
)
def test_a_bundle_returns_them(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    settings = dict(pair.split("=") for pair in shared(name))
    bundle = tmp_path / "b"
    outputs = ["hidden_states:1", "attentions:1.3"]
    conversion = posexport.convert(name, bundle, settings=settings, outputs=outputs, lengths=[9], threads=1, **options)
    assert conversion.report is not None
    assert conversion.report.passed, conversion.report.describe()
    session = posexport.load(bundle, threads=1)
    got = session.run({"input_ids": np.arange(7)[None]})
    assert got["hidden_states.1"].shape == (1, 7, 40)
    assert got["attentions.1.3"].shape == (1, 7, 7)
    agree(got["attentions.1.3"].sum(-1), np.ones((1, 7)), "model in half precision", np.float16)
    assert posexport.verify(bundle, name, lengths=[5], threads=1).passed


def test_a_large_model_is_proven_as_a_whole() -> None:
    assert "--outputs" in str(reduction_of(chosen("encoder-rope", "hidden_states:3", layers=6)))
    assert not isinstance(reduction_of(chosen("encoder-rope", layers=6)), str)


def test_each_output_is_there_once() -> None:
    names = [one.name for one in parsed(["hidden_states:3, 1", "attentions:10.5,10", "hidden_states:1"])]
    assert names == ["hidden_states.3", "hidden_states.1", "attentions.10.5", "attentions.10"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hidden_states:3", "hidden_states of encoder-rope must be from 0 to 2, got 3"),
        ("attentions:2.1", "attentions of encoder-rope must be from 0 to 1, got 2"),
        ("attentions:1.5", "a head of encoder-rope must be from 0 to 4, got 5 in attentions.1.5"),
        ("hidden_states:1.2", "got 'hidden_states:1.2'"),
        ("hidden_states:-1", "got 'hidden_states:-1'"),
        ("hidden_states", "got 'hidden_states'"),
        ("hidden_state:1", "did you mean hidden_states?"),
    ],
)
def test_what_does_not_exist_is_refused(text: str, said: str) -> None:
    with pytest.raises(PosexportError) as caught:
        chosen("encoder-rope", text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "kinds"),
    [
        ("audio-absolute", "hidden_states:0", "encoders and text decoders"),
        ("encoder-decoder-rope", "hidden_states:0", "encoders and text decoders"),
        ("encoder-rope", "cross_attentions:0", "encoder-decoders"),
    ],
)
def test_other_models_are_refused(name: str, text: str, kinds: str) -> None:
    with pytest.raises(PosexportError, match=f"{text[:-2]} is for {kinds} that posexport defines"):
        with_outputs(builtin_source(name, task=None, settings_given=("layers=1",)), [text])

