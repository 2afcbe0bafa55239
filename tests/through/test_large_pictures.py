"""A large model of images and text is compared with its class by a few layers, without reading all of its weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from posexport.errors import PosexportError
from posexport.sources import lazy_parameters, memory_mapped
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.through.test_reduced_pictures import deepstack, llava, qwen, saved

pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

from ci.through import tiny
from posexport.through import grids, module, vision_agreement


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every model is large; the numbers of layers of the models that are compared."""
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 64)
    monkeypatch.setattr(module, "LARGE", 0)
    counts: list[int] = []
    different = vision_agreement._different

    def counting(definition: Any, original: nn.Module, *rest: Any) -> str:
        lists = [each for each in original.modules() if isinstance(each, nn.ModuleList) and len(each) > 2]
        counts.append(max(map(len, lists)))
        return different(definition, original, *rest)

    monkeypatch.setattr(vision_agreement, "_different", counting)
    return counts


def loaded(model: nn.Module, folder: Path) -> nn.Module:
    """The module of a checkpoint in 16 bits."""
    return load_source(saved(model.bfloat16(), folder), LoadOptions(), lazy=True).module


@pytest.mark.parametrize(("model", "layers"), [(qwen, [5]), (deepstack, [8])])
def test_weights_of_other_layers_are_not_read(
    tmp_path: Path, compared: list[int], model: Callable[[], nn.Module], layers: list[int]
) -> None:
    parameters = dict(loaded(model(), tmp_path).named_parameters())
    assert compared == layers
    assert sum(map(lazy_parameters.is_lazy, parameters.values())) > len(parameters) // 5


def test_all_layers_are_compared_where_code_asks_for_all(tmp_path: Path, compared: list[int]) -> None:
    """LLaVA's features are those of a layer that is counted from the last one."""
    loaded(llava(), tmp_path)
    assert compared == [4, 7], "the call with a few fails"


def test_all_layers_are_compared_where_a_tower_refuses_a_few(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grids.Grids.__init__

    def whole(tower: grids.Grids, config: Any, model: Any) -> None:
        if len(model.model.visual.blocks) < 8:
            raise PosexportError("a few layers are not enough")
        made(tower, config, model)

    monkeypatch.setattr(grids.Grids, "__init__", whole)
    loaded(qwen(), tmp_path)
    assert compared == [8]


def test_a_tower_that_computes_something_else_is_refused(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = grids.Grids.forward
    monkeypatch.setattr(grids.Grids, "forward", lambda *args, **named: 1.01 * forward(*args, **named))
    with pytest.raises(PosexportError, match="gives other logits for an image than its parts do"):
        loaded(qwen(), tmp_path)
    assert compared == [5, 8], "a few layers, then all"


def test_a_class_that_asks_for_its_layers_by_number_is_called_with_all(tmp_path: Path, compared: list[int]) -> None:
    """CLIPSeg decodes what layers 3, 6 and 9 of CLIP give."""
    tiny.make(tmp_path, tiny.table()["clipseg"])
    source = load_source(str(tmp_path), LoadOptions(), lazy=True)
    assert [spec.name for spec in source.outputs] == ["logits"]
    assert not compared
