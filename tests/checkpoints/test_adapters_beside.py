"""LoRA adapters that rows choose (``--adapters``), against models with weights that are merged here from the files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import Tensor

import posexport
from posexport.base.spec import ADAPTERS
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.export.build import build
from posexport.errors import PosexportError
from posexport.models.with_adapters import WithAdapters
from posexport.nn.adapted import AdaptedLinear
from posexport.proof.choose import ProofOptions, prove_model
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import draw
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source
from tests.checkpoints.test_adapters import adapter
from tests.small import recipe
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
BERT, LLAMA, GPT2 = "bert-absolute", "llama-forcausallm", "gpt2-lmheadmodel"
IDS = [[5, 9, 2, 17, 7, 11]] * 4
#: of each row: the second adapter, none, the first, the second
CHOSEN = [2, 0, 1, 2]


def made(folder: Path, golden: str, seed: int, part: str = "layer", **settings: Any) -> Path:
    """An adapter of all matrices whose names have ``part`` in them; its rank is ``seed`` + 2, its alpha 5."""
    rng, rank = np.random.default_rng(seed), seed + 2
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(GOLDEN / golden / "model.safetensors").items():
        if weight.ndim == 2 and part in name and "embed" not in name:
            outputs, inputs = weight.shape[::-1] if settings.get("fan_in_fan_out") else weight.shape
            a, b = rng.standard_normal((rank, inputs)), rng.standard_normal((outputs, rank)) / rank
            stem = name.removesuffix(".weight")
            tensors[f"{stem}.lora_A.weight"] = torch.from_numpy(a * inputs**-0.5).float()
            tensors[f"{stem}.lora_B.weight"] = torch.from_numpy(b).float()
    return adapter(folder, GOLDEN / golden, tensors, r=rank, **settings)


def merged(folder: Path, golden: str, lora: Path, scale: Callable[[int], float], *, transposed: bool) -> Path:
    """The base model's folder with W + s B A in place of W, computed in float64."""
    shutil.copytree(GOLDEN / golden, folder)
    weights, tensors = load_file(folder / "model.safetensors"), load_file(lora / "adapter_model.safetensors")
    for name, a in tensors.items():
        if "lora_A" in name:
            stem = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            product = scale(len(a)) * tensors[name.replace("lora_A", "lora_B")].double() @ a.double()
            weights[f"{stem}.weight"] = (weights[f"{stem}.weight"] + (product.T if transposed else product)).float()
    save_file(weights, folder / "model.safetensors")
    return folder


def beside(golden: str, tmp_path: Path, **settings: Any) -> tuple[Source, list[Path]]:
    """The source with two adapters, and their folders."""
    folders = [made(tmp_path / f"a{number}", golden, number, **settings) for number in (0, 1)]
    adapters = {folder.name: folder for folder in folders}
    return checkpoint_source(GOLDEN / golden, task=None, allow_pickle=False, adapters=adapters), folders


def answers(source: Source, **inputs: Any) -> Tensor:
    """The first output in float64."""
    with torch.inference_mode():
        first: Tensor = source.module.double()(input_ids=torch.tensor(IDS), **inputs)[0]
    return first


@pytest.mark.parametrize(
    ("golden", "settings", "scale"),
    [
        (BERT, {}, lambda rank: 5 / rank),
        (LLAMA, {"use_rslora": True}, lambda rank: 5 / rank**0.5),
        (GPT2, {"fan_in_fan_out": True, "part": ".h."}, lambda rank: 5 / rank),
        ("falcon-forcausallm", {"part": ".h."}, lambda rank: 5 / rank),
        ("bert-absolute-forquestionanswering", {"part": "layer.0.attention"}, lambda rank: 5 / rank),
    ],
)
def test_each_row_is_its_adapters_merged_model(
    golden: str, settings: dict[str, Any], scale: Callable[[int], float], tmp_path: Path
) -> None:
    source, folders = beside(golden, tmp_path, **settings)
    base = GOLDEN / golden
    transposed = "fan_in_fan_out" in settings
    models = [
        base,
        *(merged(tmp_path / f"m{n}", golden, lora, scale, transposed=transposed) for n, lora in enumerate(folders)),
    ]
    alone = [
        answers(load_source(str(model), LoadOptions()), attention_mask=torch.ones(4, 6).long()) for model in models
    ]
    got = answers(source, attention_mask=torch.ones(4, 6).long(), adapter_ids=torch.tensor(CHOSEN))
    for row, number in enumerate(CHOSEN):
        agree(got[row].numpy(), alone[number][row], "model in float32", np.float32)
    assert float((alone[1] - alone[2]).abs().max()) > 0.1 * float(alone[0].abs().max())


def test_embeddings_are_adapted_and_a_tied_head_is_not(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(GOLDEN / GPT2, base)
    rng, name = np.random.default_rng(0), "transformer.wte"
    a, b = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in ((2, 23), (20, 2)))
    lora = adapter(
        tmp_path / "a", base, {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b}, r=2, lora_alpha=3
    )
    source = checkpoint_source(base, task=None, allow_pickle=False, adapters={"a": lora})
    # the head keeps the table of the file
    plain = load_source(str(base), LoadOptions())
    token = plain.module.get_submodule("decoder.token")
    assert isinstance(token, torch.nn.Embedding)
    token.weight = torch.nn.Parameter(token.weight + (1.5 * b.double() @ a.double()).T.float())
    got = answers(source, adapter_ids=torch.tensor([1, 1, 0, 0]))
    agree(got[:2].numpy(), answers(plain)[:2], "model in float32", np.float32)
    agree(got[2:].numpy(), answers(load_source(str(base), LoadOptions()))[2:], "model in float32", np.float32)


def test_a_projection_keeps_its_weight_and_none_is_zeros(tmp_path: Path) -> None:
    source, _ = beside(BERT, tmp_path)
    plain = load_source(str(GOLDEN / BERT), LoadOptions())
    adapted = {path: module for path, module in source.module.named_modules() if isinstance(module, AdaptedLinear)}
    assert adapted
    for path, module in adapted.items():
        assert torch.equal(module.weight, plain.module.get_parameter(f"{path.removeprefix('model.')}.weight"))
        # the smaller rank of the first adapter is filled up with zeros
        assert module.lora_A.shape == (3, module.in_features, 3)
        assert not module.lora_A[0].any()
        assert not module.lora_B[1, 2].any()
    assert source.sha256 != plain.sha256
    assert isinstance(source.module, WithAdapters)
    assert source.inputs[-1].names == ["a0", "a1"]
    assert source.inputs[:-1] == plain.inputs


def test_the_grid_has_every_adapter_in_one_batch(tmp_path: Path) -> None:
    source, _ = beside(LLAMA, tmp_path)
    many = [*source.inputs[:-1], source.inputs[-1].__class__(**{**_fields(source), "size": 9})]
    for inputs, count in ((source.inputs, 3), (many, 9)):
        points = [point for point in grid(source.limits, inputs, lengths=[3, 17]) if point.batch >= count]
        assert any(point.calls for point in points)
        for point in points:
            assert set(draw(point, inputs)[ADAPTERS].tolist()) == set(range(count))


def _fields(source: Source) -> dict[str, Any]:
    spec = source.inputs[-1]
    return {name: getattr(spec, name) for name in type(spec).__struct_fields__}


def exchanged(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a[[0, 2, 1]]


def doubled(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate((a[:1], 2 * a[1:2], a[2:]))


@pytest.mark.all(but=("exchanged",))
@pytest.mark.parametrize(("leaf", "change"), [("lora_A", exchanged), ("lora_B", doubled), ("lora_B", np.zeros_like)])
def test_the_proof_finds_a_wrong_adapter(leaf: str, change: Callable[..., Any], tmp_path: Path) -> None:
    """Two adapters exchanged, one with the double factor, and none, in one projection of one layer."""
    source, _ = beside(BERT, tmp_path)
    path, options = tmp_path / "model.onnx", ProofOptions(lengths=[5], threads=1)
    build(source, path, recipe())
    assert (report := prove_model(source, path, options)).passed, report.describe()
    model = onnx.load(path)
    stored = next(each for each in model.graph.initializer if each.name.endswith(f"groups.0.feedforward.outer.{leaf}"))
    stored.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(stored)), stored.name))
    onnx.save(model, path)
    assert not prove_model(source, path, options).passed


@pytest.mark.all
@pytest.mark.parametrize(
    ("golden", "options"),
    [
        (BERT, {"target": "cpu"}),
        (BERT, {"precision": "int8"}),
        (BERT, {"precision": "fp16"}),
        (LLAMA, {"target": "cpu"}),
        (LLAMA, {"cache": "static"}),
        (LLAMA, {"precision": "int4", "target": "cpu"}),
        (LLAMA, {"outputs": ["hidden_states:1"]}),
    ],
)
def test_a_bundle_is_proven_and_keeps_adapters_in_float(golden: str, options: dict[str, Any], tmp_path: Path) -> None:
    _, folders = beside(golden, tmp_path)
    adapters = {folder.name: folder for folder in folders}
    done = posexport.convert(
        str(GOLDEN / golden), tmp_path / "b", adapters=adapters, lengths=[5, 17], threads=1, **options
    )
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    wide = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
    model = onnx.load(tmp_path / "b" / "model.onnx", load_external_data=False)
    stored = [each for each in model.graph.initializer if "lora_" in each.name]
    assert stored
    assert {each.data_type for each in stored} <= wide
    report = posexport.verify(tmp_path / "b", str(GOLDEN / golden), adapters=adapters, lengths=[5], threads=1)
    assert report.passed
    with pytest.raises(PosexportError, match="--adapters a0=DIR --adapters a1=DIR"):
        posexport.verify(tmp_path / "b", str(GOLDEN / golden), lengths=[5])


def test_a_bundle_answers_by_names(tmp_path: Path) -> None:
    _, folders = beside(LLAMA, tmp_path)
    adapters = [f"{folder.name}={folder}" for folder in folders]
    posexport.convert(str(GOLDEN / LLAMA), tmp_path / "b", adapters=adapters, verify=False)
    session = posexport.load(tmp_path / "b", threads=1)
    assert session.adapters == ["a0", "a1"]
    # rows of one batch are as alone; no adapter is the base model
    names = ["a1", None, "a0", "a1"]
    together = session.generate(IDS, adapter=names, max_new_tokens=5)
    alone = {name: session.generate(IDS[:1], adapter=name, max_new_tokens=5).completions[0].tokens for name in names}
    assert [each.tokens for each in together.completions] == [alone[name] for name in names]
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    chat = session.chat(adapter="a0", max_new_tokens=5)
    assert chat.generate(IDS[0]).completions[0].tokens == alone["a0"]
    beams = session.generate(IDS[:2], adapter=["a0", "a1"], num_beams=2, max_new_tokens=5).completions
    for each, name in zip(beams, ("a0", "a1"), strict=True):
        assert (
            each.tokens == session.generate(IDS[:1], adapter=name, num_beams=2, max_new_tokens=5).completions[0].tokens
        )
    # arrays
    logits = session.run({"input_ids": IDS, ADAPTERS: CHOSEN})["logits"]
    base = session.run({"input_ids": IDS[:1]})["logits"]
    agree(logits[[0, 1]], np.stack((logits[3], base[0])), "model in float32", np.float32)
    with pytest.raises(PosexportError, match=r"adapter_ids holds 3 at \[1\]; it takes ids from 0 to 2"):
        session.run({"input_ids": IDS[:2], ADAPTERS: [0, 3]})
    for wrong, said in (("a2", "this bundle has a0, a1"), (["a0"], "one for each of 4 prompts")):
        with pytest.raises(PosexportError, match=said):
            session.generate(IDS, adapter=wrong)


@pytest.mark.parametrize(
    ("settings", "tensors", "said"),
    [
        ({"use_dora": True}, {}, "sets use_dora, which is no part of plain LoRA"),
        ({}, {"embeddings.word_embeddings.lora_embedding_A": (2, 61)}, "needs two matrices"),
        ({}, {"encoder.layer.0.output.dense.bias": (20,)}, "is replaced as a whole"),
        ({}, {"encoder.layer.9.output.dense": None}, "which the model in .* does not have"),
        ({}, {"embeddings.LayerNorm": None}, "which the model in .* does not have|of the shape"),
    ],
)
def test_what_rows_cannot_choose_is_refused(
    settings: dict[str, Any], tensors: dict[str, Any], said: str, tmp_path: Path
) -> None:
    stored = {}
    for name, shape in tensors.items():
        pair = {f"{name}.lora_A.weight": (3, 20), f"{name}.lora_B.weight": (20, 3)} if shape is None else {name: shape}
        stored |= {path: torch.ones(size) for path, size in pair.items()}
    stored = stored or {"encoder.layer.0.output.dense.lora_A.weight": torch.ones(3, 20)}
    lora = adapter(tmp_path / "a", GOLDEN / BERT, stored, **settings)
    with pytest.raises(PosexportError, match=said):
        checkpoint_source(GOLDEN / BERT, task=None, allow_pickle=False, adapters={"a": lora})


@pytest.mark.parametrize(
    ("source", "adapters", "said"),
    [
        (BERT, ["a"], "--adapters needs NAME=DIR"),
        (BERT, ["a=x", "a=y"], "--adapters has a twice"),
        (BERT, ["a={golden}/bert-absolute"], "has no adapter_config.json"),
        ("bart-forconditionalgeneration", ["a={lora}"], "one graph, this model is several"),
    ],
)
def test_options_that_do_not_fit_are_refused(source: str, adapters: list[str], said: str, tmp_path: Path) -> None:
    lora = made(tmp_path / "a", BERT, 0)
    given = [text.format(golden=GOLDEN, lora=lora) for text in adapters]
    with pytest.raises(PosexportError, match=said):
        posexport.convert(str(GOLDEN / source), tmp_path / "b", adapters=given, verify=False)
    with pytest.raises(PosexportError, match="--adapters is for checkpoints of transformers"):
        load_source("encoder-rope", LoadOptions(adapters=(("a", str(lora)),)))
    assert not (tmp_path / "b").exists()


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    lora = made(tmp_path / "a", LLAMA, 0)
    with pytest.raises(PosexportError, match="--adapters is for --layout bundle"):
        posexport.convert(str(GOLDEN / LLAMA), tmp_path / "b", adapters={"a": lora}, layout="optimum", verify=False)
    with pytest.raises(PosexportError, match="--adapter-format onnxruntime: or genai"):
        posexport.convert(str(GOLDEN / LLAMA), tmp_path / "b", adapters={"a": lora}, layout="genai", verify=False)


def test_a_bundle_without_adapters_names_the_option(tmp_path: Path) -> None:
    posexport.convert(str(GOLDEN / LLAMA), tmp_path / "b", verify=False)
    with pytest.raises(PosexportError, match="no adapters to choose from; convert it again with --adapters NAME=DIR"):
        posexport.load(tmp_path / "b").generate(IDS, adapter="a0")
    assert "adapters" not in json.loads((tmp_path / "b" / "posexport.json").read_text())["recipe"]
