"""Every row of `export.messages` meets its bad module, and what is no row any more converts and is right."""

import contextlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.modules import transformer

from posexport.base.targets.target import target_names
from posexport.cli import main
from posexport.conversion.export.messages import REFUSALS, cannot_trace
from posexport.errors import PosexportError
from posexport.sources.torch_fixes.as_exported import as_exported
from posexport.sources.torch_fixes.size_uses import ShapeEnv, recording_size_uses
from tests.small import in_short

HERE = Path(__file__).parents[1] / "bad_modules"
REFUSED = HERE / "refused.py"
FOLLOWED = re.findall(r"^def (\w+)", (HERE / "followed.py").read_text(), re.MULTILINE)
#: rows that only the proof can see: the module is converted, and is wrong
SEEN_BY_THE_PROOF = {"antialiased_resize", "branch_on_length", "fails_at_run_time"}
#: attention that torch writes as what ONNX Runtime's kernels refuse, for one target or another
OF_EVERY_TARGET = {"attention_of_three_axes", "fast_path", "grouped_queries", "padding_mask_of_attention"}
#: one for each thing that posexport does for these
SHORT = {
    ("fast_path", "cpu"),
    ("grouped_queries", "cuda"),
    ("example_of_size_one", "portable"),
    ("recurrent_layers", "portable"),
    ("mask_by_vmap", "portable"),
}
Convert = Callable[..., tuple[int, str]]


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Convert:
    """The command line in this process: exit code and stderr. A refusal leaves nothing beside the output."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def command(factory: str, target: str = "portable") -> tuple[int, str]:
        lengths = ["--length", "5", "--length", "17", "--target", target]
        monkeypatch.setattr("sys.argv", ["posexport", "convert", factory, "-o", str(tmp_path / "out" / "b"), *lengths])
        with pytest.raises(SystemExit) as ended:
            main()
        code = int(ended.value.code or 0)
        assert code == 0 or not list((tmp_path / "out").iterdir())
        return code, capfd.readouterr().err

    return command


def test_every_row_has_its_bad_module() -> None:
    factories = re.findall(r"^def (\w+)", REFUSED.read_text(), re.MULTILINE)
    assert set(factories) == {name for row in REFUSALS for name in (row, f"{row}_mended")}
    assert all(re.search(refusal.pattern, refusal.says) for refusal in REFUSALS.values())


#: the tracer's own check fails there, and no line of the module is on its stack
WITHOUT_LINE = {"caught_error"}


# flex_attention and nested tensors warn of themselves when they are called
@pytest.mark.all(but=("fails_at_run_time",))
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", list(REFUSALS))
def test_a_bad_module_is_told_its_line_and_what_to_write(convert: Convert, name: str) -> None:
    code, err = convert(f"{REFUSED}:{name}")
    refusal = REFUSALS[name]
    said = next(line for line in err.splitlines() if refusal.remedy in line)
    assert code == (1 if name in SEEN_BY_THE_PROOF else 2)
    before, _, after = refusal.meaning.partition("{0}")
    assert before in said
    assert after in said
    assert len(said) < 5 * 120
    line = re.search(r"refused\.py line (\d+): `(.*?)` ", said)
    if name in WITHOUT_LINE:
        assert "calls pad" in said
    else:
        assert line is not None
        assert REFUSED.read_text().splitlines()[int(line[1]) - 1].strip() == line[2]
    kept = re.search(r"all that \w+ says is in (\S+)", said)
    if kept is not None:
        assert "Error" in Path(kept[1]).read_text()
        assert Path(kept[1]).parent == Path(tempfile.gettempdir())
    assert "Suggested" not in said
    assert "onsider using" not in said


@pytest.mark.all  # without a line of ours: what PyTorch does with it
@pytest.mark.parametrize("name", list(REFUSALS))
def test_what_the_row_says_to_write_converts(convert: Convert, name: str) -> None:
    code, err = convert(f"{REFUSED}:{name}_mended")
    assert code == 0, err


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "target"),
    in_short(
        [
            *((name, "portable") for name in FOLLOWED if name not in OF_EVERY_TARGET),
            *((name, target) for name in FOLLOWED if name in OF_EVERY_TARGET for target in target_names()),
        ],
        lambda name, target: (name, target) in SHORT,
    ),
)
def test_what_torch_follows_today_is_right(convert: Convert, name: str, target: str) -> None:
    code, err = convert(f"{HERE / 'followed.py'}:{name}", target)
    assert code == 0, err


def test_an_unknown_message_is_quoted_without_what_torch_suggests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    err = ValueError("the frobnicator is odd. Suggested fixes: frames = 3000\nand more\nand more")
    said = str(cannot_trace("m.py:make", err))
    assert said.startswith(
        "m.py:make cannot be traced: ValueError: the frobnicator is odd.; all that PyTorch says is in"
    )
    assert "3000" not in said
    assert "3000" in Path(said.rpartition(" ")[2]).read_text()
    assert str(cannot_trace("m", ValueError("short"))) == "m cannot be traced: ValueError: short"


def test_torch_is_left_as_it_was() -> None:
    before = (torch.SymBool.__bool__, ShapeEnv._set_replacement, transformer._detect_is_causal_mask)
    for enabled in (False, True):
        torch.backends.mha.set_fastpath_enabled(enabled)
        with contextlib.suppress(PosexportError), as_exported(), recording_size_uses():
            assert not torch.backends.mha.get_fastpath_enabled()
            raise PosexportError
        assert torch.backends.mha.get_fastpath_enabled() == enabled
    assert before == (torch.SymBool.__bool__, ShapeEnv._set_replacement, transformer._detect_is_causal_mask)
