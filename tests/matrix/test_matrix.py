"""What users convert is proven: every case of the covering array, by the command's defaults."""

from pathlib import Path

import pytest

import posexport
from tests.matrix.cases import Case, covering_array, models, possible

#: one for each precision, target and kind of KV cache, of short proofs
SHORT = ("encoder-absolute-portable-fp32-dynamic",)


@pytest.mark.all(but=SHORT)
@pytest.mark.parametrize("case", covering_array(), ids=str)
def test_a_conversion_is_proven(case: Case, tmp_path: Path) -> None:
    done = posexport.convert(
        case.model.argument,
        tmp_path / "bundle",
        settings=case.model.settings,
        target=case.target,
        precision=case.precision,
        cache=case.cache,
        opset=case.opset,
        threads=1,
    )
    assert done.good, done.report.to_text()


def test_the_array_has_every_pair_and_every_model() -> None:
    covered = set[tuple[object, ...]]().union(*(case.pairs for case in covering_array()))
    assert covered == set[tuple[object, ...]]().union(*(case.pairs for model in models() for case in possible(model)))
    assert {case.model.name for case in covering_array()} == {model.name for model in models()}
