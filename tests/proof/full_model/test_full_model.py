"""A full model's graph is accepted as its reduced model's with the checkpoint's weights, and every mistake is found."""

from pathlib import Path

import onnx
import pytest

from posexport.proof.full_model.records import NotComparableError
from posexport.proof.quantized.records import StoredError
from tests.full_model_mutants import MUTANTS, OF_ROWS
from tests.full_models import pair, parameters

pytestmark = pytest.mark.all


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("decoder-rope", {"precision": precision}) for precision in ("fp32", "fp16", "int8", "int4")),
        *(("encoder-absolute", {"precision": precision}) for precision in ("fp32", "int8")),
    ],
)
def test_right_graphs_are_accepted_and_mistakes_are_found(name: str, options: dict[str, str], tmp_path: Path) -> None:
    graphs = pair(name, tmp_path, **options)
    assert graphs.check().layers == 10
    arrays = {key: parameter.detach().numpy() for key, parameter in parameters(graphs.full).items()}
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
