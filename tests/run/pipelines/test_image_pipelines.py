"""Pipelines of pictures answer as ``transformers.pipeline`` did (tests/answers/images/pipelines)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import posexport
from ci.answers import image_pipelines as made
from ci.answers.pipelines import equal, plain
from ci.answers.seeded import rebuild
from posexport import PosexportError, Session
from posexport.base.spec import InputSpec, LengthContract, OutputSpec
from posexport.run.bundle.manifest import Manifest
from posexport.run.pipelines.registry import open_pipeline

ROWS = json.loads((made.GOLDEN / "answers.json").read_text())
CONVERTED = ("vit", "vit-features")
ZERO_SHOT = "zero-shot-image-classification"


def asks(*models: str) -> list[Any]:
    """Parameters: the calls of ``models`` with the library's answers."""
    fields = ("model", "task", "inputs", "options", "form")
    return [
        pytest.param(made.Ask(**{name: row[name] for name in fields}), row, id=f"{number}-{row['model']}")
        for number, row in enumerate(ROWS)
        if row["model"] in models
    ]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Session]:
    opened: dict[str, Session] = {}

    def bundle(model: str) -> Session:
        if model not in opened:
            at = tmp_path_factory.mktemp("images")
            checkpoint = rebuild(made.GOLDEN / f"{model}.json", at / model)
            posexport.convert(checkpoint, at / "bundle", verify=False)
            opened[model] = posexport.load(at / "bundle")
        return opened[model]

    return bundle


@pytest.mark.all(but=("0-vit",))
@pytest.mark.parametrize(("ask", "row"), asks(*CONVERTED))
def test_as_the_library(ask: made.Ask, row: Any, bundles: Callable[[str], Session]) -> None:
    session = bundles(ask.model)
    if ask.options.get("pool"):
        with pytest.raises(PosexportError, match="pool needs pooler_output, and this bundle gives last_hidden_state"):
            posexport.pipeline(session)(ask.given, **ask.options)
        return
    pipeline = posexport.pipeline(session)
    assert pipeline.task == ask.task
    assert equal(plain(pipeline(ask.given, **ask.options)), row["answer"])


def test_scores_by_the_kind_of_problem(bundles: Callable[[str], Session]) -> None:
    """As of a folder whose config.json says it."""
    for problem, function in (("multi_label_classification", "sigmoid"), ("regression", "none"), (None, "softmax")):
        pipeline = posexport.pipeline(bundles("vit"))
        expected = pipeline(made.COLOUR, function_to_apply=function)
        pipeline.files.config["problem_type"] = problem
        assert pipeline(made.COLOUR) == expected


def on_the_library(model: str, calls: list[Any], like: Manifest) -> Session:
    """A session of a model of pictures and texts that takes what the library's took, and returns its logits.

    ``like``: the manifest of any bundle.
    """
    folder = made.GOLDEN / model
    texts = [
        InputSpec(name=name, dtype="int64", axes=["batch_size", "sequence_length"], role=role)
        for name, role in (("input_ids", "tokens"), ("attention_mask", "mask"))
    ]
    waiting = list(calls)

    def run(feeds: Mapping[str, Any], *, outputs: list[str]) -> dict[str, Any]:
        assert outputs == ["logits_per_image"]
        rows = []
        for pixels in feeds["pixel_values"]:
            call = waiting.pop(0)
            assert made.digest(pixels[None]) == call["pixels"]
            assert feeds["input_ids"].tolist() == call["input_ids"]
            mask = call.get("attention_mask", np.ones_like(feeds["input_ids"]).tolist())
            assert feeds["attention_mask"].tolist() == mask
            rows += call["logits"]
        return {outputs[0]: np.array(rows, dtype=np.float32)}

    pixels = InputSpec(name="pixel_values", dtype="float32", axes=["image_batch_size", 3, 18, 18], role="values")
    inputs = [*texts, pixels]
    outputs = [OutputSpec(name="logits_per_image", axes=["image_batch_size", "batch_size"])]
    manifest = msgspec.structs.replace(
        like,
        task=ZERO_SHOT,
        inputs=inputs,
        outputs=outputs,
        files=dict.fromkeys([path.name for path in folder.iterdir()]),
        limits=LengthContract(max_length=24 if model == "clip" else 64, limited_axes=["sequence_length"]),
    )
    session = SimpleNamespace(directory=folder, manifest=manifest, inputs=inputs, outputs=outputs, run=run)
    return cast(Session, session)


@pytest.mark.parametrize(("ask", "row"), asks("clip", "siglip"))
def test_labels_named_at_run_time(ask: made.Ask, row: Any, bundles: Callable[[str], Session]) -> None:
    """Token ids, mask and pixels are those that the library's model took; then its logits give its answer."""
    pipeline = open_pipeline(on_the_library(ask.model, row["calls"], bundles("vit").manifest), None)
    assert equal(plain(pipeline(ask.given, **ask.options)), row["answer"])


def test_pictures_share_a_call(bundles: Callable[[str], Session]) -> None:
    (ask, row) = next(each.values for each in asks("siglip") if isinstance(each.values[0].inputs, list))
    runs = []
    session = on_the_library("siglip", row["calls"], bundles("vit").manifest)
    run = session.run
    session.run = lambda feeds, **options: runs.append(len(feeds["pixel_values"])) or run(feeds, **options)  # type: ignore[method-assign]
    answer = open_pipeline(session, None)(ask.given, batch_size=4, **ask.options)
    assert runs == [4, 2]
    assert equal(plain(answer), row["answer"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "candidate_labels must be a list of texts, got None; name at least one label"),
        ({"candidate_labels": "cat, dog"}, "candidate_labels must be a list of texts, got 'cat, dog'"),
        ({"candidate_labels": []}, "name at least one label"),
        ({"candidate_labels": ["cat"], "hypothesis_template": "{x}"}, "hypothesis_template '{x}' cannot take a label"),
        ({"candidate_labels": ["cat " * 30]}, r"input 0 has \d+ tokens, .*shorter labels, or a shorter hypothesis"),
        ({"candidate_labels": ["cat"], "topk": 3}, "has no option topk; "),
    ],
)
def test_labels_that_are_none(options: dict[str, Any], said: str, bundles: Callable[[str], Session]) -> None:
    with pytest.raises(PosexportError, match=said):
        open_pipeline(on_the_library("clip", [], bundles("vit").manifest), None)(made.COLOUR, **options)


def test_bad_input(bundles: Callable[[str], Session], tmp_path: Path) -> None:
    classify = posexport.pipeline(bundles("vit"))
    for inputs, options, said in (
        (made.COLOUR, {"top_k": 0}, "top_k must be at least 1, got 0"),
        (made.COLOUR, {"function_to_apply": "cube"}, "must be one of sigmoid, softmax"),
        (tmp_path / "absent.png", {}, "absent.png does not exist"),
        ([[made.COLOUR]], {}, "a list of 1 stands where a picture is needed"),
        (3, {}, "a picture is a path, .*got int"),
    ):
        with pytest.raises(PosexportError, match=said):
            classify(inputs, **options)
    for task in ("image-feature-extraction", ZERO_SHOT):
        with pytest.raises(PosexportError, match=f"for image-classification, and not for the pipeline {task}"):
            posexport.pipeline(bundles("vit"), task)
    arrays = posexport.pipeline(bundles("vit-features"))(made.COLOUR, return_tensors=True)
    assert arrays.shape == (1, 17, 20)
    assert arrays.dtype == np.float32
