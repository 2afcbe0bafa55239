"""Adapters in files for ONNX Runtime (``--adapter-format onnxruntime``), against merged models and stacked adapters."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

import posexport
from posexport.base.spec import ADAPTERS
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.export.build import build
from posexport.errors import PosexportError
from posexport.proof.choose import ProofOptions, prove_model
from posexport.run import adapter_files
from posexport.run.chain import open_chain
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.checkpoints.test_adapters import adapter
from tests.checkpoints.test_adapters_beside import BERT, CHOSEN, GOLDEN, GPT2, IDS, LLAMA, answers, beside
from tests.small import recipe
from tests.tolerances import agree


def feeds() -> dict[str, NDArray[Any]]:
    ids = np.array(IDS)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def opened(path: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # a default that is an input is told as a warning
    return onnxruntime.InferenceSession(path, options)


def by_onnxruntime(folder: Path, *names: str) -> NDArray[Any]:
    """The first output with the adapter of a file, by ONNX Runtime alone; no name: the base model."""
    options = onnxruntime.RunOptions()
    for name in names:
        active = onnxruntime.LoraAdapter()
        active.Load(str(folder / f"{name}.onnx_adapter"))
        options.add_active_adapter(active)
    first: NDArray[Any] = opened(folder / "model.onnx").run(None, feeds(), options)[0]
    return first


def test_each_file_is_the_merged_model_in_onnxruntime(tmp_path: Path) -> None:
    source, folders = beside(BERT, tmp_path)
    build(source, tmp_path / "model.onnx", recipe(adapter_format="onnxruntime"))
    found = [by_onnxruntime(tmp_path), by_onnxruntime(tmp_path, "a0"), by_onnxruntime(tmp_path, "a1")]
    for got, folder in zip(found, (GOLDEN / BERT, *folders), strict=True):
        merged = answers(load_source(str(folder), LoadOptions()), attention_mask=torch.ones(4, 6).long())
        agree(got, merged.numpy(), "model in float32", np.float32)
    # a bundle chooses for each row
    chain, names = open_chain(tmp_path / "model.onnx", [], opened), [source.outputs[0].name]
    (rows,) = chain.run(names, {**feeds(), ADAPTERS: np.array(CHOSEN)})
    expected = np.stack([found[number][row] for row, number in enumerate(CHOSEN)])
    agree(rows, expected, "model in float32", np.float32)
    assert min(np.abs(found[a] - found[b]).max() for a, b in ((0, 1), (0, 2), (1, 2))) > 0.1


@pytest.mark.all
@pytest.mark.parametrize(
    ("golden", "options"),
    [
        (BERT, {}),
        (LLAMA, {"target": "cpu"}),
        (LLAMA, {"precision": "int8"}),
        (BERT, {"precision": "int4"}),
        (LLAMA, {"cache": "static"}),
        (LLAMA, {"layout": "genai"}),
    ],
)
def test_the_graph_with_its_files_is_proven(golden: str, options: dict[str, Any], tmp_path: Path) -> None:
    _, folders = beside(golden, tmp_path)
    adapters = {folder.name: folder for folder in folders}
    given = {"adapters": adapters, "adapter_format": "onnxruntime", "lengths": [5, 17], "threads": 1, **options}
    done = posexport.convert(str(GOLDEN / golden), tmp_path / "b", **given)
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    session = posexport.load(tmp_path / "b", threads=1)
    assert session.adapters == ["a0", "a1"]
    if golden == LLAMA:  # rows of one batch are as alone
        together = session.generate(IDS[:3], adapter=["a1", None, "a0"], max_new_tokens=5).completions
        for name, each in zip(("a1", None, "a0"), together, strict=True):
            alone = session.generate(IDS[:1], adapter=name, max_new_tokens=5).completions
            assert each.tokens == alone[0].tokens


@pytest.mark.all
@pytest.mark.parametrize("wrong", ["exchanged", "zeros"])
def test_the_proof_finds_a_wrong_file(wrong: str, tmp_path: Path) -> None:
    source, _ = beside(BERT, tmp_path)
    path, options = tmp_path / "model.onnx", ProofOptions(lengths=[5], threads=1)
    build(source, path, recipe(adapter_format="onnxruntime"))
    files = [tmp_path / f"a{number}.onnx_adapter" for number in (0, 1)]
    found = [adapter_files.read(file) for file in files]
    if wrong == "exchanged":
        found.reverse()
    else:
        found[0] = {name: np.zeros_like(array) for name, array in found[0].items()}
    for file, parameters in zip(files, found, strict=True):
        adapter_files.write(file, parameters)
    assert not prove_model(source, path, options).passed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"adapters": {}}, "--adapter-format onnxruntime is for --adapters NAME=DIR, and there are none"),
        ({"adapters": {"../a": "x"}}, "'../a' is no file's name"),
        ({"precision": "fp16"}, "graphs that compute in float32, .* got --precision fp16"),
        ({"int32": True}, "int64 inputs, got --precision fp32 --int32"),
        ({"static_sizes": {"batch_size": 1}}, "--static"),
    ],
)
def test_what_has_not_been_tried_is_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = {"adapters": {"a": "x"}, "adapter_format": "onnxruntime", **options}
    with pytest.raises(PosexportError, match=said):
        posexport.convert(str(GOLDEN / BERT), tmp_path / "b", **given)
    assert not (tmp_path / "b").exists()


def test_an_adapter_of_an_embedding_is_refused(tmp_path: Path) -> None:
    tensors = {"wte.lora_embedding_A": torch.ones(2, 23), "wte.lora_embedding_B": torch.ones(20, 2)}
    lora = adapter(tmp_path / "a", GOLDEN / GPT2, {f"transformer.{name}": each for name, each in tensors.items()}, r=2)
    source = checkpoint_source(GOLDEN / GPT2, task=None, allow_pickle=False, adapters={"a": lora})
    with pytest.raises(PosexportError, match="one changes an embedding"):
        build(source, tmp_path / "model.onnx", recipe(adapter_format="onnxruntime"))
