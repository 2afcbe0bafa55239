"""Every family's golden checkpoint is converted with the defaults of ``posexport convert``, and proven."""

from pathlib import Path

import pytest

import posexport
from posexport.proof.choose import heads_of
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINTS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


@pytest.mark.all
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_default_conversion_is_proven(name: str, tmp_path: Path) -> None:
    conversion = posexport.convert(str(GOLDEN / name), tmp_path / "bundle")
    assert conversion.report is not None
    assert conversion.report.passed, conversion.report.describe()


@pytest.mark.parametrize("name", ["gemma3-forcausallm", "mistral-forcausallm", "modernbert-formaskedlm"])
def test_scores_of_layers_with_windows_count_as_memory(name: str) -> None:
    """Their encoding is composed of two, and registered under neither name."""
    assert heads_of(load_source(str(GOLDEN / name), LoadOptions())) > 1
