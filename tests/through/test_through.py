"""Checkpoints of types that posexport does not define: what is decided without transformers.

Conversions are in test_types.py, and all of them in ci/through/run.
"""

import json
import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import yaml

from posexport.base.tasks import registry
from posexport.catalogue.registries import TABLES
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.families.closest import closest
from posexport.checkpoints.families.registry import FAMILIES
from posexport.errors import PosexportError
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.through import library, refusals
from posexport.through.checkpoint import _unread, _unread_keys
from posexport.through.types import PROVEN, REFUSED

ROOT = Path(__file__).parents[2]


def refusal(path: Path, **config: object) -> str:
    """Why a directory with this config.json, and nothing else, is not converted."""
    path.joinpath("config.json").write_text(json.dumps({"architectures": ["XModel"], **config}))
    with pytest.raises(PosexportError) as caught:
        checkpoint_source(path, task=None, allow_pickle=False)
    return str(caught.value)


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize("kind", ["clip", "mixtral", "zzz"])
def test_a_type_of_transformers_alone_says_what_to_install(tmp_path: Path, kind: str) -> None:
    sentence = refusal(tmp_path, model_type=kind)
    assert f"model_type = '{kind}'" in sentence
    assert "pip install 'posexport[transformers]'" in sentence
    assert ("is converted through transformers" in sentence) == (kind in PROVEN)
    assert sentence.endswith("the closest is mistral") == (kind == "mixtral")


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "rwkv"}, "not converted: its recurrence keeps a running maximum"),
        ({"model_type": "zzz", "auto_map": {"AutoModel": "x.X"}}, "auto_map names is never run"),
        ({"model_type": "mixtral", "auto_map": {"AutoModel": "x.X"}}, "pip install"),
        ({"model_type": "mixtral", "quantization_config": {"quant_method": "gptq"}}, "sets quantization_config"),
        ({"model_type": "big_bird"}, "only attention_type = original_full"),
        ({"model_type": "bigbird_pegasus"}, "only attention_type = original_full"),
        ({"model_type": "mixtral", "rope_scaling": {"type": "dynamic"}}, "rope_type = dynamic"),
        ({"model_type": "olmo3", "rope_parameters": {"a": {"rope_type": "longrope"}}}, "rope_type = longrope"),
    ],
)
def test_what_config_json_alone_refuses(tmp_path: Path, config: dict[str, object], said: str) -> None:
    assert said in refusal(tmp_path, **config)


def test_code_of_a_type_that_transformers_defines_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "is_installed", lambda _: True)
    code = {"auto_map": {"AutoModel": "x.X"}}

    def config(**values: object) -> Config:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return Config(Directory(tmp_path), "config.json")

    (remark,) = refusals.check(config(model_type="nomic_bert", **code))
    assert "auto_map), which is not run: the model is transformers' class for nomic_bert" in remark
    assert refusals.check(config(model_type="nomic_bert")) == []
    settings = type("XConfig", (), {"__annotations__": {"hidden_size": int}, "attribute_map": {"n_head": "x"}})()
    read = {"model_type": "x", "hidden_size": 1, "n_head": 2, "torch_dtype": "float32"}
    assert _unread_keys(config(**read, **code), settings) == []
    (remark,) = _unread_keys(config(**read, **code, n_layer=3), settings)
    assert remark == "config.json: XConfig of transformers does not read n_layer"


def test_tensors_of_the_base_model_that_the_class_does_not_read_are_known() -> None:
    base = torch.nn.ModuleDict({"encoder": torch.nn.Linear(1, 1)})
    model = SimpleNamespace(base_model_prefix="bert", base_model=base)
    names = ["bert.encoder.gate", "encoder.alibi", "lm_head.weight", "cls.bias"]
    assert _unread(cast("torch.nn.Module", model), names) == ["bert.encoder.gate", "encoder.alibi"]


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_positions_that_transformers_5_leaves_out_are_refused_through_it(kind: str) -> None:
    with pytest.raises(
        PosexportError, match=rf"position_embedding_type = {kind}, which transformers 5 does not compute"
    ):
        load_source(str(ROOT / f"tests/golden/bert-{kind}"), LoadOptions(definition="transformers"))


def test_the_records_of_golden_checkpoints_are_as_their_table_says() -> None:
    """Every one was compared, or refused by the sentence of ci/through/golden.yaml."""
    table = yaml.safe_load((ROOT / "ci/through/golden.yaml").read_text())
    lines = (ROOT / "ci/results/through_golden.jsonl").read_text().splitlines()
    rows = {row["checkpoint"]: row for row in map(json.loads, lines)}
    assert sorted(rows) == sorted(path.name for path in (ROOT / "tests/golden").iterdir() if path.is_dir())
    for name, row in rows.items():
        said = next((said for key, said in table.items() if fnmatch(name, key)), None)
        assert row["outcome"] == ("same" if said is None else "refused"), name
        assert said is None or said in row["said"], name


@pytest.mark.usefixtures("without_transformers")
def test_a_type_that_posexport_defines_goes_through_transformers_where_it_is_asked_to() -> None:
    golden = str(ROOT / "tests/golden/bert-absolute")
    assert load_source(golden, LoadOptions()).kind == "huggingface"
    with pytest.raises(PosexportError, match="is converted through transformers, and that is not installed"):
        load_source(golden, LoadOptions(definition="transformers"))
    with pytest.raises(PosexportError, match="--definition is for checkpoints"):
        load_source("encoder-rope", LoadOptions(definition="transformers"))


@pytest.mark.parametrize(
    ("architecture", "keys", "task"),
    [
        ("MixtralForCausalLM", (), "text-generation"),
        ("OpenAIGPTLMHeadModel", (), "text-generation"),
        ("ConvBertForMaskedLM", (), "fill-mask"),
        ("CLIPTextModelWithProjection", (), "features"),
        ("SqueezeBertModel", (), "features"),
        ("CLIPModel", ("text_config", "vision_config"), "zero-shot-image-classification"),
        ("Wav2Vec2ForCTC", (), "ctc"),
        ("PegasusForConditionalGeneration", (), "text2text-generation"),
        ("LlavaForConditionalGeneration", ("text_config", "vision_config"), "image-text-to-text"),
        ("DetrForObjectDetection", (), "object-detection"),
        ("DetrForSegmentation", (), "image-segmentation"),
        ("ViTMAEForPreTraining", (), None),
    ],
)
def test_a_class_says_its_task(architecture: str, keys: tuple[str, ...], task: str | None) -> None:
    found = registry.task_of(architecture, keys)
    assert (found and found.name) == task
    assert task is None or task in registry.TASKS


def test_other_versions_than_the_tested_one_are_said() -> None:
    assert library.remarks(library.TESTED) == []
    assert library.remarks("5.99.0") == [
        f"transformers 5.99.0 is installed; posexport was tested with {library.TESTED}"
    ]


def test_types_are_defined_through_transformers_or_refused_and_only_one_of_these() -> None:
    assert not set(PROVEN) & set(FAMILIES)
    assert not set(REFUSED) & (set(FAMILIES) | set(PROVEN))
    rows = {row["name"]: row for row in TABLES["families"]()}
    assert rows["bert"]["how"] == "defined"
    assert rows["mixtral"]["how"] == "through transformers"
    assert library.TESTED in rows["mixtral"]["what"]
    assert rows["rwkv"]["how"] == "refused"
    assert REFUSED["rwkv"] in rows["rwkv"]["what"]


def test_the_list_follows_what_ci_through_recorded() -> None:
    """Every recorded proof is listed with its task, nothing else that was recorded is, and every type has a row."""
    groups = yaml.safe_load((ROOT / "ci/through/checkpoints.yaml").read_text()).values()
    entries = {name: entry for group in groups for name, entry in group["checkpoints"].items()}
    lines = (ROOT / "ci/results/through.jsonl").read_text().splitlines()
    recorded = {
        row["type"]: row for row in map(json.loads, lines) if (row["target"], row["precision"]) == ("cpu", "fp32")
    }
    proven = {kind: row["said"] for kind, row in recorded.items() if row["outcome"] == "proven"}
    types = {name for name, entry in entries.items() if not entry.keys() & {"through", "live"}}
    assert {kind: task for kind, task in proven.items() if kind in types} == {
        kind: task for kind, task in PROVEN.items() if kind in recorded
    }
    assert set(PROVEN) <= {name for name, entry in entries.items() if "refused" not in entry}
    assert set(PROVEN.values()) <= set(registry.TASKS)
    assert recorded.keys() <= entries.keys()


def test_relatives_of_refused_types_are_families() -> None:
    assert {closest(kind) for kind in REFUSED} - {None} <= set(FAMILIES)


@pytest.mark.all
def test_small_checkpoints_are_converted_through_transformers(tmp_path: Path) -> None:
    """ci/through/run, in the environment that it makes: every row is proven, or refused as its table says."""
    done = subprocess.run([ROOT / "ci/through/run"], env={**os.environ, "THROUGH_INTO": str(tmp_path)}, check=False)
    assert done.returncode == 0
