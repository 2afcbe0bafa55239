"""Attention sinks, and windows of decoders with rotations."""

from pathlib import Path

import numpy as np
import pytest
import torch

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.nn.attention import attend
from posexport.sources.builtin import builtin_source as builtin
from tests.tolerances import agree

SMALL = ("vocab=61", "hidden=20", "heads=5", "feedforward=24", "layers=1", "max_positions=40")


def test_a_sink_takes_its_share_and_gives_nothing() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, n, 4)) for n in (5, 7, 7))
    sink = rng.standard_normal(3)
    mask = np.where(np.arange(7) < 6, 0.0, -1e30)
    exp = np.exp(np.einsum("bhtd,bhsd->bhts", q, k) * 0.5 + mask)
    want = np.einsum("bhts,bhsd->bhtd", exp / (exp.sum(-1, keepdims=True) + np.exp(sink)[:, None, None]), v)
    given = [torch.from_numpy(array) for array in (q, k, v)]
    got = attend(*given, scale=0.5, mask=torch.from_numpy(mask)[None, None, None], sink=torch.from_numpy(sink))
    agree(got, want, "attention", np.float64)
    without = attend(*given, scale=0.5, mask=torch.from_numpy(mask)[None, None, None])
    assert np.abs(without.numpy() - want).max() > 1e-2


def test_a_window_ends_what_a_token_sees() -> None:
    source = builtin("decoder-rope", task=None, settings_given=(*SMALL, "window=4"))
    decoder = source.module.decoder
    assert decoder.encodings[0].name == "rope+local-window"  # type: ignore[union-attr, operator, index]
    at = Positions.counted(9)
    term = decoder.encodings[0].scores(torch.zeros(1, 5, 9, 4), torch.zeros(1, 5, 9, 4), at, at)  # type: ignore[union-attr, operator, index]
    seen = (term.dense() > -1).numpy()[0, 0] & np.tril(np.ones((9, 9), bool))
    assert [int(row.sum()) for row in seen] == [1, 2, 3, 4, 4, 4, 4, 4, 4]


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "cache"),
    [
        pytest.param("decoder-rope", ("sinks=true",), "dynamic", marks=pytest.mark.all),
        ("decoder-rope", ("sinks=true", "kv_heads=1"), "static"),
        ("decoder-rope", ("sinks=true", "window=4"), "dynamic"),
        pytest.param("decoder-alibi", ("sinks=true", "kv_heads=1"), "dynamic", marks=pytest.mark.all),
        pytest.param("decoder-relative-key-query", ("sinks=true",), "static", marks=pytest.mark.all),
    ],
)
def test_sinks_and_windows_are_proven(name: str, settings: tuple[str, ...], cache: str, tmp_path: Path) -> None:
    wanted = ConvertOptions(settings=(*SMALL, *settings), cache=cache, lengths=(1, 7, 40), threads=1)  # type: ignore[arg-type]
    assert convert(name, tmp_path / "x", wanted).good


@pytest.mark.all
def test_blocks_of_queries_have_the_sink_too(tmp_path: Path) -> None:
    assert convert(
        "decoder-alibi",
        tmp_path / "x",
        ConvertOptions(settings=(*SMALL[:-1], "max_positions=200", "sinks=true"), lengths=(131,), threads=1),
    ).good


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        ("decoder-alibi", "window=4", "window=4 is for encodings that rotate .* alibi does more: leave it out"),
        ("decoder-rope", "window=0", r"window must be at least 1 token \(or none\), got 0"),
    ],
)
def test_a_window_that_does_not_fit_is_refused(name: str, setting: str, says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        builtin(name, task=None, settings_given=(*SMALL, setting))
