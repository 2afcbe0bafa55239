"""`assertions` is still needed, as in `test_still_needed`."""

import pytest
import torch
from torch.export import Dim

from posexport.sources.torch_fixes.assertions import with_assertions_held
from posexport.sources.torch_fixes.size_uses import recording_size_uses
from tests.asserting import Asserting

IDS = torch.tensor([[3, 4, 0], [5, 0, 0]])


def program(way: str) -> torch.export.ExportedProgram:
    return torch.export.export(Asserting(way), (IDS,), dynamic_shapes=({0: Dim("rows"), 1: Dim("length")},))


@pytest.mark.parametrize("way", ["assert", "message", "parts", "not"])
def test_what_is_asserted_holds(way: str) -> None:
    with recording_size_uses(), pytest.raises(Exception, match="data-dependent"):
        program(way)
    with with_assertions_held(), recording_size_uses():
        traced = program(way).module()
    ids = torch.tensor([[1, 2, 3, 0, 0]])
    assert torch.equal(traced(ids), ids + 3)


def test_a_branch_is_not_decided() -> None:
    with with_assertions_held(), recording_size_uses(), pytest.raises(Exception, match="data-dependent"):
        program("branch")
