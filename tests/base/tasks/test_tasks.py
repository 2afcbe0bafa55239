"""Records of tasks: each says what its models return, and its pipelines exist."""

import importlib

import pytest

from posexport.base.tasks.registry import TASKS
from posexport.base.tasks.task import ANY
from posexport.errors import PosexportError
from posexport.run.pipelines.pipeline import Pipeline
from posexport.sources.builtin import builtin_source
from posexport.through.module import _check_axes


@pytest.mark.parametrize("name", TASKS)
def test_a_record(name: str) -> None:
    task = TASKS[name]
    assert task.name == name
    assert task.what
    assert bool(task.outputs) != (name == "tensors")
    for pipeline in task.pipelines:
        module, cls = pipeline.implementation.split(":")
        assert issubclass(getattr(importlib.import_module(f"posexport.run.pipelines.{module}"), cls), Pipeline)


def test_an_output_of_other_axes_than_its_task_says_is_another_task() -> None:
    source = builtin_source("encoder-nope", task="token-classification", settings_given=("layers=1",))
    assert [len(spec.axes) for spec in source.outputs] == [3]
    _check_axes("x", "token-classification", source)
    assert TASKS["image-segmentation"].outputs["logits"] == ANY
    _check_axes("x", "image-segmentation", source)
    with pytest.raises(
        PosexportError, match=r"returns logits as \[batch_size, sequence_length, .*about .*labels\]; ch"
    ):
        _check_axes("x", "sequence-classification", source)
