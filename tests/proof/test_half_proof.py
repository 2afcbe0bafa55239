"""Verdicts on half precision where there is nothing to measure by, and on graphs that posexport did not write."""

import onnx
import pytest
import torch
from torch import nn

import posexport

TINY = {"layers": 1, "hidden": 60, "heads": 5, "vocab": 61, "max_positions": 40}


class Large(nn.Module):
    """Weights that float16 holds, activations that it does not."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.table = nn.Embedding(61, 20)
        self.factor = factor

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids) * self.factor
        return x * x


def converted(tmp_path, factor, precision):
    torch.manual_seed(0)
    ids = torch.randint(0, 61, (2, 7))
    return posexport.convert(
        Large(factor), tmp_path / precision, example_inputs={"input_ids": ids}, precision=precision, lengths=[5, 9]
    )


@pytest.mark.all
def test_what_overflows_in_pytorch_too_is_not_proven(tmp_path):
    """Neither passed nor failed: the report says that PyTorch's own overflows, and what holds it."""
    report = converted(tmp_path, 3000.0, "fp16").report
    assert {point.verdict for point in report.points} == {"skipped"}
    assert {point.note for point in report.points} == {"output: PyTorch's own fp16 overflows; use fp32 or bf16"}
    assert not report.passed
    # the range of float32, and smaller numbers, are judged as ever
    for factor, precision in ((3000.0, "bf16"), (3.0, "fp16")):
        report = converted(tmp_path / str(factor), factor, precision).report
        assert {point.verdict for point in report.points} == {"pass"}


@pytest.mark.all
def test_a_foreign_graph_is_judged_by_what_it_stores(tmp_path):
    """One .onnx without a manifest, float16 inside, between inputs and outputs of float32."""
    made = {"settings": TINY, "verify": False}
    tolerances = {}
    for precision in ("fp32", "fp16"):
        posexport.convert("encoder-t5", tmp_path / precision, precision=precision, **made)
        model = onnx.load(tmp_path / precision / "model.onnx")
        del model.metadata_props[:]
        alone = tmp_path / f"{precision}.onnx"
        onnx.save(model, alone)
        report = posexport.verify(alone, against="encoder-t5", settings=TINY, lengths=[17])
        assert report.passed, report.to_text()
        assert report.precision == precision
        tolerances[precision] = max(point.tolerance for point in report.points if point.tolerance)
        errors = [point.error for point in report.points if point.error]
        assert (max(errors) > 1e-4) == (precision == "fp16")
    assert tolerances["fp16"] > 100 * tolerances["fp32"]
