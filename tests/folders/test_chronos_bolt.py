"""Chronos-Bolt: what its folders are taken for, what is refused, and quantiles that are the library's at every length.

Where chronos-forecasting is not installed, recognition and refusals alone are tested.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import posexport
from posexport.base.system import extras
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.makers import MAKERS
from posexport.checkpoints.opened import open_checkpoint
from posexport.errors import PosexportError
from posexport.folders.chronos_bolt import ChronosBolt
from tests.command import posexport as command
from tests.small import proven
from tests.tolerances import agree

PATCH, LONGEST = 8, 60
SERIES = {
    "context_length": LONGEST,
    "prediction_length": 5,
    "input_patch_size": PATCH,
    "input_patch_stride": PATCH,
    "quantiles": [0.1, 0.5, 0.9],
    "use_reg_token": True,
}
SIZES = {"d_model": 40, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 5, "vocab_size": 2}
STATED = {"architectures": ["ChronosBoltModelForForecasting"], "model_type": "t5", "chronos_config": SERIES}


def folder_of(folder: Path, **stated: Any) -> Path:
    """A folder with a config.json alone."""
    (folder / "config.json").write_text(json.dumps(stated))
    return folder


def made(folder: Path, **series: Any) -> Any:
    """A checkpoint with entries so large that the bias of positions shows far above rounding."""
    pytest.importorskip("chronos", reason="pip install 'posexport[chronos]'", exc_type=ImportError)
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = T5Config(**SIZES, pad_token_id=0, decoder_start_token_id=0, eos_token_id=None)
    config.chronos_config = {**SERIES, **series}
    generator = torch.Generator().manual_seed(0)
    model = ChronosBoltModelForForecasting(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            table = "relative" in name or "shared" in name
            scale = 1.0 if table else 0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(scale * noise + ("norm" in name))
    model.save_pretrained(folder)
    return model


def library(model: Any, series_BT: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        answer: torch.Tensor = model(context=series_BT).quantile_preds
    return answer


def with_gaps(length: int, seed: int) -> torch.Tensor:
    """Series, [4, T], NaN where steps are missing: whole, without half of them, with a late begin, without any."""
    drawn = torch.Generator().manual_seed(seed)
    series_BT = 5 + 2 * torch.randn(4, length, generator=drawn)
    series_BT[1, torch.rand(length, generator=drawn) < 0.5] = torch.nan
    series_BT[2, : length // 2] = torch.nan
    series_BT[3] = torch.nan
    return series_BT


def check_quantiles(session: Any, model: Any, length: int) -> None:
    series_BT = with_gaps(length, seed=length)
    feeds = {"context": series_BT.nan_to_num(9.0).numpy(), "mask": (~series_BT.isnan()).long().numpy()}
    got = session.run(feeds)["quantile_preds"]
    assert got.shape == (4, 3, 5)
    agree(got, library(model, series_BT), "another library", "float32")


def test_the_type_is_not_t5s(tmp_path: Path) -> None:
    config = Config(Directory(folder_of(tmp_path, **STATED)))
    assert config.text("model_type") == "chronos_bolt"
    assert MAKERS["chronos_bolt"].kind == "transformers"


def test_chronos_t5_is_a_t5_of_ids_as_a_remark_says(tmp_path: Path) -> None:
    stated = {**STATED, "architectures": ["T5ForConditionalGeneration"]}
    checkpoint = open_checkpoint(folder_of(tmp_path, **stated))
    assert checkpoint.config.text("model_type") == "t5"
    (remark,) = checkpoint.remarks
    assert "has a chronos_config: the graphs read and give ids, of which ChronosTokenizer" in remark


def test_chronos_2_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, **{**STATED, "architectures": ["Chronos2Model"]})
    with pytest.raises(
        PosexportError, match=r"model_type = 'chronos2', which is not converted: rows of a batch attend"
    ):
        posexport.convert(tmp_path, tmp_path / "bundle")


def test_chronos_forecasting_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = extras.is_installed
    monkeypatch.setattr(extras, "is_installed", lambda name: name != "chronos" and installed(name))
    done = command("convert", folder_of(tmp_path, **STATED), "-o", tmp_path / "bundle")
    assert done.returncode == 2
    assert "is of Chronos-Bolt, which needs chronos-forecasting, which is not installed: " in done.stderr
    assert "pip install 'posexport[chronos]'" in done.stderr


def test_another_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PosexportError, match=r"Chronos-Bolt is for time-series-forecasting, not features; leave --task"
    ):
        posexport.convert(folder_of(tmp_path, **STATED), tmp_path / "bundle", task="features")


@pytest.mark.parametrize("name", ["input_patch_embedding.hidden_layer.weight", "lm_head.weight"])
def test_a_tensor_too_few_or_too_many_is_refused(tmp_path: Path, name: str) -> None:
    """The class draws the one at random and ignores the other."""
    made(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(
        {**tensors, name: torch.ones(2)} if name not in tensors else {k: v for k, v in tensors.items() if k != name},
        file,
    )
    with pytest.raises(PosexportError, match=f"has (no|a) tensor {name}"):
        posexport.convert(tmp_path, tmp_path / "bundle")


@pytest.mark.parametrize("series", [{}, {"use_reg_token": False, "input_patch_stride": 4}])
def test_the_module_is_the_librarys_class(tmp_path: Path, series: dict[str, Any]) -> None:
    model = made(tmp_path, **series)
    module = ChronosBolt(copy.deepcopy(model)).eval()
    for length in (*range(1, 2 * PATCH + 2), LONGEST):
        series_BT = with_gaps(length, seed=length)
        mask_BT = (~series_BT.isnan()).long()
        for given in ((series_BT.nan_to_num(9.0), mask_BT), (series_BT, torch.ones_like(mask_BT))):
            with torch.no_grad():
                got = module(context=given[0], mask=given[1])["quantile_preds"]
            agree(got, library(model, series_BT), "another library", "float32")


@pytest.mark.all
def test_quantiles_are_the_librarys(tmp_path: Path) -> None:
    model = made(tmp_path / "checkpoint")
    done = proven(tmp_path / "checkpoint", tmp_path / "bundle", lengths=[PATCH + 1], threads=1)
    assert (done.manifest.task, done.manifest.limits.max_length) == ("time-series-forecasting", LONGEST)
    session = posexport.load(tmp_path / "bundle")
    for length in (1, PATCH - 1, PATCH, PATCH + 1, 3 * PATCH + 2, LONGEST):
        check_quantiles(session, model, length)
    # without a mask all steps are read, and the order of patches matters
    series_BT = with_gaps(3 * PATCH, 0)[:1]
    turned_BT = series_BT.view(1, 3, PATCH).flip(1).reshape(1, -1)
    answers = [session.run({"context": x.numpy()})["quantile_preds"] for x in (series_BT, turned_BT)]
    agree(answers[0], library(model, series_BT), "another library", "float32")
    assert np.abs(answers[0] - answers[1]).max() > 0.01
    with pytest.raises(PosexportError, match=rf"context has sequence_length {LONGEST + 1}, this bundle takes at most"):
        session.run({"context": np.zeros((1, LONGEST + 1), np.float32)})


@pytest.mark.all
@pytest.mark.parametrize("series", [{}, {"use_reg_token": False, "input_patch_stride": 4, "context_length": 64}])
def test_every_length_is_proven_and_the_librarys(tmp_path: Path, series: dict[str, Any]) -> None:
    model = made(tmp_path / "checkpoint", **series)
    done = proven(tmp_path / "checkpoint", tmp_path / "bundle", threads=1)
    assert done.manifest.proven, done.verdict
    session = posexport.load(tmp_path / "bundle")
    for length in range(1, {**SERIES, **series}["context_length"] + 1):
        check_quantiles(session, model, length)
