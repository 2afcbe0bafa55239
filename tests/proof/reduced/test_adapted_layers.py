"""LoRA adapters of a model of many layers: traced by a few of them, and compared in every layer of the file."""

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from posexport.conversion.export.build import build
from posexport.proof.full_model.check import Layers, check
from posexport.proof.full_model.records import NotComparableError
from posexport.proof.quantized.records import StoredError
from posexport.proof.reduced.reduction import Reduction, parameters_of, reduction_of
from tests.checkpoints.test_adapters_beside import BERT, LLAMA, beside
from tests.conversion.export.test_by_layers import compare, grown
from tests.small import recipe


@pytest.mark.all
@pytest.mark.parametrize("golden", [BERT, LLAMA])
def test_the_adapters_of_every_layer_are_compared(golden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = beside(golden, tmp_path)
    many = grown(source)
    compare(many, monkeypatch)
    few = reduction_of(many)
    assert isinstance(few, Reduction)
    full, reduced = tmp_path / "full.onnx", tmp_path / "reduced.onnx"
    build(many, full, recipe(task=many.task))
    build(few.source, reduced, recipe(task=many.task))

    def compared() -> Layers:
        stored, of_reduced = parameters_of(many.module), parameters_of(few.source.module)
        return check(full, reduced, few.stacks, stored, of_reduced, inputs=many.inputs, words=few.words, quantizer=None)

    assert compared().layers == few.layers
    model = onnx.load(full)
    tensor = next(each for each in model.graph.initializer if ".3." in each.name and each.name.endswith("lora_B"))
    array = numpy_helper.to_array(tensor).copy()
    array[2] *= 2
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, full)
    with pytest.raises((StoredError, NotComparableError)):
        compared()
