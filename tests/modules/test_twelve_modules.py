"""Twelve modules as users write them: ten are converted, recognised and proven; two are refused by the line.

The files know nothing of posexport; what a variant of a refused one does instead stands beside it, and is converted.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from posexport.cli import main
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.modules.returned import named_outputs
from posexport.run.bundle.read import read
from tests.small import in_short

HERE = Path(__file__).parents[1] / "twelve_modules"
TARGETS = ("portable", "cpu", "cuda")
TEXT: list[str | int] = ["batch_size", "sequence_length"]


class Expected(NamedTuple):
    """``recognised``: attentions that become nodes. ``axes``: of the first input. ``target``: of the short tests."""

    recognised: int
    target: str | None
    axes: list[str | int] = TEXT
    max_length: int | None = None


CONVERTED = {
    "nanogpt:make": Expected(2, "cpu", max_length=300),
    "nanogpt:slow": Expected(2, None, max_length=300),
    "alibi_encoder:make": Expected(2, None),
    "t5_bias_encoder:make": Expected(2, None),
    "rope_gqa_decoder:make": Expected(2, None),
    "shaw:make": Expected(2, "portable"),
    "sequence_first:make": Expected(2, "cuda", ["sequence_length", "batch_size"], max_length=600),
    "conformer:make": Expected(1, "cpu", [*TEXT, 23]),
    "vit:make": Expected(2, "cpu", ["batch_size", 3, "height", "width"]),
    "cross_attention:make": Expected(2, None, max_length=256),
    "raises_beyond_table:make": Expected(1, None, max_length=77),
    "baked_mask:sliced": Expected(1, "cpu", max_length=150),
    "dynamic_ntk:chosen": Expected(1, None),
}
#: the exit code, the line that is named, and what stands beside it
REFUSED = {
    "baked_mask": (2, 'return scores.masked_fill(~mask, float("-inf"))', "input_ids always has 17 tokens"),
    "dynamic_ntk": (1, "if seq_len > self.trained:", "torch.where"),
}
#: PyTorch's tutorial leaves it on where it has no effect
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")


def test_there_are_twelve_and_none_knows_posexport() -> None:
    files = {path.stem: path.read_text() for path in HERE.glob("*.py")}
    assert len(files) == 12
    assert {name.partition(":")[0] for name in CONVERTED} | set(REFUSED) == set(files)
    assert sum(name.endswith(":make") for name in CONVERTED) == 10
    assert not any("posexport" in text for text in files.values())


@pytest.mark.all(but=("sequence_first",))
@pytest.mark.parametrize(
    ("name", "target", "lengths"),
    in_short(
        [
            *((name, expected.target, (7, 17)) for name, expected in CONVERTED.items() if expected.target),
            *((name, target, None) for name in CONVERTED for target in TARGETS),
        ],
        lambda _name, _target, lengths: lengths is not None,
    ),
)
def test_it_is_recognised_and_right(tmp_path: Path, name: str, target: str, lengths: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    file, _, factory = name.partition(":")
    options = ConvertOptions(target=target, lengths=lengths, threads=1)
    done = convert(f"{HERE / file}.py:{factory}", tmp_path / "b", options)
    assert done.good, done.to_text()
    assert done.report is not None
    assert {each.verdict for each in done.report.invariants} == {"pass"}
    expected, manifest = CONVERTED[name], read(tmp_path / "b")
    assert manifest.proven is (lengths is None)
    assert manifest.inputs[0].axes == expected.axes
    assert manifest.limits.max_length == expected.max_length
    assert manifest.passes["recognised-attention"].nodes == expected.recognised
    attention = {name: lowering.nodes for name, lowering in manifest.lowerings.items() if name.endswith("Attention")}
    # attention that leaves padding out is there for a row too, but a decoder's
    by_row = 0 if any("Causal" in name for name in attention) else manifest.passes["unpadding"].nodes
    assert sum(attention.values()) == expected.recognised + by_row


@pytest.mark.parametrize("target", in_short(TARGETS, lambda target: target == "cpu"))
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_line(
    tmp_path: Path, name: str, target: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source, out = f"{HERE / name}.py:make", tmp_path / "b"
    arguments = ["convert", source, "-o", str(out), "--target", target, "--length", "17", "--length", "65"]
    monkeypatch.setattr(sys, "argv", ["posexport", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    code, text, remedy = REFUSED[name]
    assert ended.value.code == code
    assert not out.exists()
    said = next(line for line in capfd.readouterr().err.splitlines() if remedy in line)
    lines = (HERE / f"{name}.py").read_text().splitlines()
    number = 1 + next(at for at, line in enumerate(lines) if line.strip() == text)
    assert re.search(rf"\b{name}\.py line {number}: `{re.escape(text)}`", said), said


def loaded(name: str) -> tuple[nn.Module, dict[str, Tensor] | tuple[Tensor, ...]]:
    file, _, factory = name.partition(":")
    module = ModuleType(file)
    sys.modules[file] = module  # dataclasses look their module up
    exec(compile((HERE / f"{file}.py").read_text(), file, "exec"), vars(module))
    del sys.modules[file]
    make: Callable[[], tuple[nn.Module, dict[str, Tensor] | tuple[Tensor, ...]]] = vars(module)[factory]
    return make()


@pytest.mark.parametrize("name", CONVERTED)
def test_its_outputs_depend_on_positions(name: str) -> None:
    """What its last token reads, or its class token, changes with the order of those before."""
    torch.manual_seed(0)
    model, inputs = loaded(name)
    tensors = list(inputs.values() if isinstance(inputs, dict) else inputs)
    axis = {"sequence_first:make": 0, "vit:make": 2}.get(name, 1)
    size, step = tensors[0].shape[axis], 7 if name == "vit:make" else 1
    order = torch.arange(size).view(-1, step)
    order = torch.cat((order[:-1].flip(0), order[-1:])).flatten()
    with torch.no_grad():
        was, now = (
            next(iter(named_outputs(model.eval()(first, *tensors[1:])).values()))
            for first in (tensors[0], tensors[0].index_select(axis, order))
        )
    if name != "vit:make":
        was, now = (y.select(axis, -1) for y in (was, now))
    assert (was - now).abs().max() > 0.02 * was.abs().max()
