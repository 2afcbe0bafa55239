"""A graph that would be given up is not translated."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.onnx._internal.exporter import _fx_passes

from posexport.conversion.export.messages import FixedAxisError
from posexport.conversion.export.trace import trace
from posexport.modules.live_module import module_source
from posexport.sources.torch_fixes.exporter_output import without_exporter_output
from posexport.sources.torch_fixes.program_checks import with_programs_checked


class Halves(nn.Module):
    """Python's ``int`` makes a number of a size, of which a trace with symbols makes none."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x[:, : int(x.shape[1] / 2)].sum(1, keepdim=True)


class Unrolled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, n].cos() for n in range(x.shape[1])], 1)


@pytest.fixture
def translations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The captured programs that were translated, filled meanwhile."""
    programs: list[object] = []
    decompose = _fx_passes.decompose_with_registry

    def translated(program: ExportedProgram, registry: Any) -> ExportedProgram:
        programs.append(program)
        return decompose(program, registry)

    monkeypatch.setattr(_fx_passes, "decompose_with_registry", translated)
    return programs


def test_a_trace_with_a_number_of_a_size_is_not_translated(translations: list[object]) -> None:
    model = trace(module_source(Halves().eval(), {"x": torch.randn(2, 9, 8)}), 18)
    assert list(model.graph.inputs[0].shape or ()) == ["batch_size", "sequence_length", 8]
    assert len(translations) == 1


def test_a_trace_that_fixes_an_axis_is_not_translated(translations: list[object]) -> None:
    with pytest.raises(FixedAxisError, match=r"axis sequence_length of input x was fixed at 11 by the trace: .*line"):
        trace(module_source(Unrolled().eval(), {"x": torch.randn(2, 9, 8)}), 18)
    assert not translations


def test_the_error_of_a_check_ends_the_export(translations: list[object]) -> None:
    """PyTorch's strategies catch an exception, and try another one."""

    def refuse(_: object) -> None:
        raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"), without_exporter_output(), with_programs_checked(refuse):
        torch.onnx.export(nn.Linear(3, 3).eval(), (torch.ones(2, 3),), dynamo=True, verbose=False)
    assert not translations
