"""Series of several lengths are predicted as by transformers' TimesFM."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import posexport
from posexport.errors import PosexportError
from posexport.through import timesfm
from tests.tolerances import agree

transformers: Any = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

LONGEST, LENGTHS = 24, (24, 13, 8, 3, 1)
FREQUENCIES = [0, 2, 1, 1, 0]


def model(**more: Any) -> Any:
    """Patches of 4 steps, and weights large enough that every step matters."""
    sizes = {"patch_length": 4, "context_length": LONGEST, "horizon_length": 8, "head_dim": 8, "hidden_size": 32}
    sizes |= {"intermediate_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = transformers.TimesFmConfig(**sizes, **more)
    made, random = transformers.TimesFmModelForPrediction(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=random)
            parameter.copy_(1 + noise if parameter.dim() == 1 else noise)
    return made.eval()


def rows(front: bool) -> tuple[list[Any], dict[str, Any]]:
    """Series of several lengths, and as rows with padding before or behind them."""
    random = np.random.default_rng(0)
    series = [(5 + 3 * random.normal(size=length)).astype(np.float32) for length in LENGTHS]
    values, mask = np.full((len(series), LONGEST), 7.0, np.float32), np.zeros((len(series), LONGEST), np.int64)
    for number, steps in enumerate(series):
        at = slice(LONGEST - len(steps), None) if front else slice(len(steps))
        values[number, at], mask[number, at] = steps, 1
    return series, {timesfm.SERIES: values, timesfm.MASK: mask}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("timesfm")
    model().save_pretrained(at / "m")
    assert posexport.convert(str(at / "m"), at / "b", target="cpu").good
    return at / "b"


@pytest.mark.parametrize("front", [True, False])
def test_series_are_predicted_as_by_transformers(bundle: Path, front: bool) -> None:
    session = posexport.load(bundle)
    series, arrays = rows(front)
    given = [torch.from_numpy(steps) for steps in series]
    with torch.no_grad():
        wanted, of_kinds = model()(past_values=given), model()(past_values=given, freq=FREQUENCIES)
    got = session.run(arrays)
    agree(got["mean_predictions"], wanted.mean_predictions.numpy(), "another library", np.float32)
    agree(got["full_predictions"], wanted.full_predictions.numpy(), "another library", np.float32)
    got = session.run({**arrays, timesfm.FREQUENCY: FREQUENCIES})
    agree(got["full_predictions"], of_kinds.full_predictions.numpy(), "another library", np.float32)
    assert not torch.equal(wanted.full_predictions[1], of_kinds.full_predictions[1])
    alone = session.run({timesfm.SERIES: series[1][None]})["mean_predictions"]
    agree(alone, wanted.mean_predictions[1:2].numpy(), "another library", np.float32)
    with pytest.raises(PosexportError, match="sequence_length 25, this bundle takes at most 24"):
        session.run({timesfm.SERIES: np.zeros((1, LONGEST + 1), np.float32)})


def test_another_answer_and_positions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model().save_pretrained(tmp_path / "m")
    own = timesfm.TimesFm.forward

    def without_mask(module: Any, **tensors: Any) -> Any:
        return own(module, **{**tensors, timesfm.MASK: torch.ones_like(tensors[timesfm.MASK])})

    with monkeypatch.context() as patched:
        patched.setattr(timesfm.TimesFm, "forward", without_mask)
        with pytest.raises(PosexportError, match="other mean_predictions for series of different lengths"):
            posexport.convert(str(tmp_path / "m"), tmp_path / "b", verify=False)
    model(use_positional_embedding=True).save_pretrained(tmp_path / "m")
    with pytest.raises(PosexportError, match="use_positional_embedding = true"):
        posexport.convert(str(tmp_path / "m"), tmp_path / "b", verify=False)
