"""Layouts of models with states: names of states in transformers.js and onnxruntime-genai, and what neither passes on.

The clients themselves run these bundles in ci/lab/clients/states.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession

import posexport
from posexport.base.options.recipe import LAYOUTS
from posexport.base.spec import NUM_LOGITS, State
from posexport.errors import PosexportError
from posexport.serve.layouts import genai
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source

pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

from ci.through import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


def source(folder: Path, kind: str) -> Source:
    """The source of a tiny checkpoint, which is made once."""
    if not (folder / kind).exists():
        tiny.make(folder / kind, tiny.table()[kind])
    return load_source(str(folder / kind), LoadOptions())


def inputs(arranged: Source) -> list[str]:
    """The graph's inputs that a call passes on to the next one; their outputs have the same names but one word."""
    (part,) = arranged.parts
    names = [spec.name for spec in part.spec.inputs if spec.role in ("cache", "state")]
    outputs = [spec.name for spec in part.spec.outputs][1:]
    client = [name.replace("present_", "past_").replace("present", "past_key_values") for name in outputs]
    assert client == names
    states = {spec.name: spec.state.output for spec in part.spec.inputs if isinstance(spec.state, State)}
    assert states == {name: output for name, output in zip(names, outputs, strict=True) if name in states}
    return names


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("lfm2", ["past_key_values.1.key", "past_key_values.1.value", "past_conv.0", "past_conv.2"]),
        (
            "nemotron_h",
            [
                "past_key_values.2.key",
                "past_key_values.2.value",
                *("past_conv.0", "past_conv.4", "past_ssm.0", "past_ssm.4"),
            ],
        ),
        (
            "olmo_hybrid",
            [
                *("past_key_values.1.key", "past_key_values.1.value"),
                *("past_conv.0.key", "past_conv.2.key", "past_recurrent.0", "past_recurrent.2"),
            ],
        ),
    ],
)
def test_transformers_js_numbers_states_by_layers(kind: str, names: list[str], folder: Path, tmp_path: Path) -> None:
    arranged = LAYOUTS["transformers.js"].arrange(source(folder, kind))
    assert inputs(arranged) == names
    # it knows the older names of layers alone
    config = json.loads((folder / kind / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    LAYOUTS["transformers.js"].write(tmp_path, arranged)
    written = json.loads((tmp_path / "config.json").read_text())
    if kind == "nemotron_h":
        assert written.pop("layers_block_type") == ["mamba", "moe", "attention", "mlp", "mamba"]
        del config["layers_block_type"]
    assert written == config


@pytest.mark.all
def test_three_graphs_number_states_by_layers(folder: Path) -> None:
    """Qwen3.5 with its vision tower, whose decoder transformers.js feeds by the kinds of the text's layers."""
    arranged = LAYOUTS["transformers.js"].arrange(source(folder, "qwen3_5"))
    files = [part.spec.file for part in arranged.parts]
    assert files == ["onnx/vision_encoder.onnx", "onnx/embed_tokens.onnx", "onnx/decoder_model_merged.onnx"]
    decoder = arranged.parts[-1].spec
    kinds = json.loads((folder / "qwen3_5" / "config.json").read_text())["text_config"]["layer_types"]
    attention = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    linear = [number for number, kind in enumerate(kinds) if kind == "linear_attention"]
    assert attention
    assert linear
    assert [spec.name for spec in decoder.inputs if spec.role in ("cache", "state")] == [
        *(f"past_key_values.{number}.{half}" for number in attention for half in ("key", "value")),
        *(f"past_conv.{number}" for number in linear),
        *(f"past_recurrent.{number}" for number in linear),
    ]
    assert {spec.state.output for spec in decoder.inputs if isinstance(spec.state, State)} == {
        f"present_{kind}.{number}" for kind in ("conv", "recurrent") for number in linear
    }


def test_genai_takes_a_decoder_through_transformers(folder: Path) -> None:
    mixtral = source(folder, "mixtral")
    assert LAYOUTS["genai"].arrange(mixtral) is mixtral
    model = genai.config(mixtral, {})["model"]
    decoder = model["decoder"]
    assert (model["type"], model["vocab_size"], decoder["hidden_size"], decoder["num_hidden_layers"]) == (
        "llama",
        64,
        32,
        2,
    )
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"], decoder["head_size"]) == (4, 2, 8)
    assert "past_conv_names" not in decoder["inputs"]


def test_genai_is_told_the_names_of_states(folder: Path) -> None:
    mamba = source(folder, "mamba2")
    assert LAYOUTS["genai"].arrange(mamba) is mamba
    decoder = genai.config(mamba, {})["model"]["decoder"]
    assert decoder["num_hidden_layers"] == 0
    assert decoder["inputs"]["past_conv_names"] == "past_conv.%d"
    assert decoder["outputs"]["present_recurrent_names"] == "present_recurrent.%d"
    # windows alone: by the numbers of layers, as an LFM2
    arranged = LAYOUTS["genai"].arrange(source(folder, "lfm2"))
    assert inputs(arranged) == ["past_key_values.1.key", "past_key_values.1.value", "past_conv.0", "past_conv.2"]
    model = genai.config(arranged, {})["model"]
    assert (model["type"], model["decoder"]["num_hidden_layers"], model["decoder"]["conv_cache_size"]) == ("lfm2", 3, 2)
    assert model["decoder"]["layer_types"] == ["conv", "full_attention", "conv"]


@pytest.mark.parametrize(
    ("layout", "kind", "said"),
    [
        ("optimum", "mamba2", "ORTModelForCausalLM of optimum-onnx 0.1.0 feeds keys and values alone"),
        ("transformers.js", "mamba2", "transformers.js 4.3 passes on for falcon_h1, .* alone, and this is 'mamba2'"),
        ("genai", "minimax", "keeps 0 windows of convolutions and 2 states of recurrences, and onnxruntime-genai 0.18"),
        ("transformers.js", "qwen3_5_text", "transformers.js 4.3 runs a qwen3_5_text as three graphs alone"),
    ],
)
def test_a_client_that_passes_no_states_on_is_named(layout: str, kind: str, said: str, folder: Path) -> None:
    with pytest.raises(PosexportError, match=f"{said}.*: leave --layout {layout} out"):
        LAYOUTS[layout].arrange(source(folder, kind))


@pytest.mark.all
def test_a_hybrid_called_as_transformers_js_calls_it(folder: Path, tmp_path: Path) -> None:
    """Zeros at first, of the shapes that inputs have, and then every output by the name of its input."""
    source(folder, "granitemoehybrid")
    done = posexport.convert(folder / "granitemoehybrid", tmp_path / "js", layout="transformers.js", lengths=[1, 17])
    assert done.good, done.to_text()
    prompt, new = [5, 9, 11, 2, 8], 12
    wanted = posexport.load(tmp_path / "js").generate([prompt], max_new_tokens=new, eos_token_id=[]).completions[0]
    session = InferenceSession(tmp_path / "js" / "onnx" / "model.onnx")
    past: dict[str, Any] = {
        value.name: np.zeros(
            [size if isinstance(size, int) else int(size == "batch_size") for size in value.shape], "f4"
        )
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    ids, tokens = prompt, list[int]()
    outputs = [value.name for value in session.get_outputs()]
    while len(tokens) < new:
        length = len(prompt) + len(tokens)
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, length), np.int64)}
        feeds["position_ids"] = np.arange(length - len(ids), length)[None]
        feeds[NUM_LOGITS] = np.array(1)
        found = dict(zip(outputs, session.run(None, {**feeds, **past}), strict=True))
        past = {
            name.replace("present_", "past_").replace("present", "past_key_values"): array
            for name, array in found.items()
            if name.startswith("present")
        }
        ids = [int(found["logits"][0, -1].argmax())]
        tokens += ids
    assert tokens == wanted.tokens
