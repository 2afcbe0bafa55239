"""Modules that treat multiples of a number in another way than other sizes, such as padding to whole patches."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.conversion.result import Failed
from posexport.errors import PosexportError
from posexport.modules.axes.sizes import narrowed
from posexport.sources.load_options import Shown
from posexport.sources.torch_fixes.size_uses import Remainder, recording_size_uses
from tests.small import proven
from tests.tolerances import agree

PATCH = 5


class PadsToPatches(nn.Module):
    """A patched series as chronos-bolt reads it: the graph of one way is wrong for the sizes of the other."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH, 7)

    def forward(self, context):
        if context.shape[1] % PATCH != 0:
            context = nn.functional.pad(context, (PATCH - context.shape[1] % PATCH, 0), value=1.0)
        return self.embed(context.unfold(1, PATCH, PATCH)).cumsum(1)[:, -1]


class PadsByCeiling(PadsToPatches):
    """The same with a number of missing samples, which the graph counts in every call."""

    def forward(self, context):
        missing = -context.shape[1] % PATCH
        if missing > 0:
            context = nn.functional.pad(context, (missing, 0), value=1.0)
        return self.embed(context.unfold(1, PATCH, PATCH)).cumsum(1)[:, -1]


@pytest.mark.parametrize("samples", [31, 35])
@pytest.mark.parametrize("module", [PadsToPatches, PadsByCeiling])
def test_branches_by_a_remainder_are_recorded(module, samples):
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim.AUTO}
    with recording_size_uses() as uses:
        torch.export.export(module(), (), {"context": torch.randn(3, samples)}, dynamic_shapes={"context": axes})
    assert list(uses.remainders) == [Remainder("context", 1, PATCH)]


@pytest.mark.all
def test_the_other_sizes_are_left_out_where_the_graph_has_one_way(tmp_path):
    module = PadsToPatches().eval()
    result = proven(module, tmp_path / "bundle", example_inputs={"context": torch.randn(3, 31)})
    assert result.manifest.limits.size_steps == {"num_samples": PATCH}
    (remark,) = [remark for remark in result.remarks if "multiple" in remark]
    assert remark.startswith(f"num_samples must be a multiple of {PATCH}: test_remainders.py line ")
    session = posexport.load(tmp_path / "bundle")
    x = torch.randn(2, 45)
    with torch.no_grad():
        agree(session.run({"context": x.numpy()})["output"], module(x), "model in float32", "float32")
    with pytest.raises(PosexportError, match=f"takes multiples of {PATCH}"):
        session.run({"context": x[:, :44].numpy()})
    # the bundle's steps count where it is compared again
    example = {"context": torch.randn(3, 31)}
    assert posexport.verify(tmp_path / "bundle", against=module, example_inputs=example).passed


@pytest.mark.all
def test_all_sizes_are_accepted_where_one_way_fits_them(tmp_path):
    module = PadsByCeiling().eval()
    result = proven(module, tmp_path / "bundle", example_inputs={"context": torch.randn(3, 31)})
    assert result.manifest.limits.size_steps == {}


def test_a_failure_that_steps_do_not_mend_is_raised(tmp_path, monkeypatch):
    from posexport.conversion import write

    def fails(*_):
        return Failed(PosexportError("parity was missed"), Shown(steps={"num_samples": 2}))

    monkeypatch.setattr(write, "_write", fails)
    with pytest.raises(PosexportError, match="parity was missed"):
        posexport.convert(PadsToPatches(), tmp_path / "bundle", example_inputs={"context": torch.randn(3, 31)})


class Reflected(nn.Module):
    """Padding by reflection, before which short inputs are extended, as EnCodec's convolutions do."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 4)

    def forward(self, x):
        short = x.shape[-1] <= 3
        x = F.pad(x, (0, 4 - x.shape[-1])) if short else x
        return self.conv(F.pad(x, (3, 0), mode="reflect"))


def test_short_inputs_are_refused_where_the_graph_does_not_run(tmp_path):
    torch.manual_seed(0)
    done = proven(Reflected().eval(), tmp_path / "b", example_inputs={"x": torch.randn(2, 4, 9)}, threads=1)
    assert any("sequence_length is at least 4: test_remainders.py line" in remark for remark in done.remarks)
    session = posexport.load(tmp_path / "b")
    assert session.run({"x": np.zeros((1, 4, 4), np.float32)})["output"].shape == (1, 4, 4)
    with pytest.raises(PosexportError, match="at least 4"):
        session.run({"x": np.zeros((1, 4, 3), np.float32)})


def test_an_axis_that_a_second_trial_does_not_find_is_named():
    with pytest.raises(PosexportError, match=r"axis width varied when .* \(found: batch_size, height\)"):
        narrowed({}, {"batch_size": 3, "height": 11}, {"width": 8}, {})


class Grouped(nn.Module):
    """Linear attention over groups of 16 tokens, padded to whole groups, as MossFormer's and FLASH's."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        padding = 16 - n % 16 if n % 16 else 0
        groups = F.pad(self.project(x), (0, 0, 0, padding)).unflatten(1, (-1, 16))
        summed = torch.einsum("bgnd,bgne->bde", groups, groups) / n
        return torch.einsum("bgnd,bde->bgne", groups, summed).flatten(1, 2)[:, :n]


def test_an_example_of_one_group_is_traced_with_two(tmp_path: Path) -> None:
    example = {"x": torch.randn(2, 11, 8)}
    proven(Grouped(), tmp_path / "b", example_inputs=example, lengths=[1, 11, 15, 17, 40])
