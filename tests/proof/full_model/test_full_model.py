"""A full model's graph is accepted as its reduced model's with the checkpoint's weights, and every mistake is found."""

from pathlib import Path

import onnx
import pytest
import torch

from posexport.proof.full_model.records import NotComparableError
from posexport.proof.quantized.records import StoredError
from posexport.sources.lazy_parameters import values
from tests.full_model_mutants import MUTANTS, OF_ROWS
from tests.full_models import Pair, pair, parameters

pytestmark = pytest.mark.all


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("decoder-rope", {"precision": precision}) for precision in ("fp32", "fp16", "int8", "int4")),
        *(("encoder-absolute", {"precision": precision}) for precision in ("fp32", "int8")),
    ],
)
def test_right_graphs_are_accepted_and_mistakes_are_found(name: str, options: dict[str, str], tmp_path: Path) -> None:
    _find_mistakes(pair(name, tmp_path, **options), name, options, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_mistakes_are_found_by_weights_in_the_16_bits_of_a_checkpoint(
    precision: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    options = {"precision": precision}
    graphs = pair("decoder-rope", tmp_path, dtype=dtype, **options)
    narrowed = sum(parameter.dtype == dtype for parameter in parameters(graphs.full).values())
    assert narrowed > 60
    _find_mistakes(graphs, "decoder-rope", options, tmp_path)


def _find_mistakes(graphs: Pair, name: str, options: dict[str, str], tmp_path: Path) -> None:
    assert graphs.check().layers == 10
    arrays = {key: values(parameter).numpy() for key, parameter in graphs.full.module.named_parameters()}
    tried, missed, wrong = 0, [], tmp_path / "wrong.onnx"
    mutants = (*(MUTANTS if name.startswith("decoder") else ()), *OF_ROWS)
    for mutant in mutants:
        model = onnx.load(graphs.path)
        if not mutant(model, arrays, graphs.stack):
            continue
        tried += 1
        onnx.save(model, wrong)
        try:
            graphs.check(wrong)
        except (StoredError, NotComparableError):  # where it cannot be said, the whole model is proven
            continue
        missed.append(mutant.__name__)
    assert not missed
    assert tried >= (10 if name.startswith("decoder") else 2 if options["precision"] == "int8" else 0)
