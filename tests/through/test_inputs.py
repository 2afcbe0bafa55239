"""Inputs of models of transformers by the names of their parameters, and what the runtime says of bad ones."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posexport.base.example_inputs import example_input
from posexport.base.spec import BATCH, SEQUENCE, InputSpec, LengthContract, Limits
from posexport.base.tasks.registry import TASKS
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError
from posexport.run.feeds import _check_values, prepare
from posexport.through.checkpoint import _load
from posexport.through.inputs import inputs_of
from posexport.through.module import SymbolicSizes, TextsOfImages, module_for_task

TEXT = {"vocab_size": 9, "pad_token_id": 0}


def model(forward: Any, **config: Any) -> Any:
    settings = SimpleNamespace(**{**TEXT, **config})
    settings.get_text_config = lambda: settings
    return SimpleNamespace(config=settings, forward=forward, main_input_name="audio_codes")


def test_boxes_of_tokens_have_bounds() -> None:
    def forward(input_ids: Any, bbox: Any, attention_mask: Any) -> None: ...

    *_, bbox = inputs_of("x", model(forward, max_2d_position_embeddings=7))
    assert (bbox.axes, bbox.size) == ([BATCH, SEQUENCE, 4], 7)
    drawn = example_input(bbox, [5, 11, 4], np.random.default_rng(0))
    assert drawn.dtype == np.int64
    assert (drawn[..., 2:] >= drawn[..., :2]).all()
    assert set(np.unique(drawn)) == set(range(7))
    _check_values(bbox, drawn, (1, 1))
    for box, said in (([0, 0, 7, 1], r"holds 7 at \[0, 0, 2\]"), ([3, 0, 2, 1], r"holds 2 at \[0, 0, 2\]")):
        with pytest.raises(PosexportError, match=said + "; it takes left, top, right and bottom from 0 to 6"):
            _check_values(bbox, np.array([[box]]), (1, 1))
    *_, shares = inputs_of("x", model(forward, bbox_scale=100.0))
    assert shares.dtype == "float32"
    with pytest.raises(PosexportError, match="right and bottom from 0 to 1, the right not left"):
        _check_values(shares, np.array([[[0.5, 0.5, 1.5, 1.0]]], np.float32), (1, 1))


def test_a_trajectory_and_a_series() -> None:
    def trajectory(
        states: Any, actions: Any, rewards: Any, returns_to_go: Any, timesteps: Any, attention_mask: Any
    ) -> None: ...

    def series(past_values: Any) -> None: ...

    inputs = inputs_of("x", model(trajectory, state_dim=5, act_dim=3, max_ep_len=40))
    assert [spec.name for spec in inputs] == ["states", "actions", "returns_to_go", "timesteps", "attention_mask"]
    (past,) = inputs_of("x", model(series, context_length=24, num_input_channels=3))
    assert past.axes == [BATCH, 24, 3]
    gap = np.full((1, 24, 3), np.nan, np.float32)
    with pytest.raises(PosexportError, match=r"past_values holds nan at \[0, 0, 0\]; it takes finite numbers"):
        _check_values(past, gap, (1, 1))


def test_other_data_is_refused_by_name() -> None:
    def forward(audio_codes: Any) -> None: ...

    with pytest.raises(PosexportError, match="SimpleNamespace takes audio_codes; posexport converts models of text"):
        inputs_of("x", model(forward))


POINTS = InputSpec(name="input_points", dtype="float32", axes=[BATCH, "groups", 2], role="points", size=48)
LABELS = InputSpec(name="input_labels", dtype="int64", axes=[BATCH, "groups"], role="prompts")
PIXELS = InputSpec(name="pixel_values", dtype="float32", axes=[BATCH, 1, 4, 4], role="values")
PLACES = InputSpec(
    name="image_position_ids", dtype="int64", axes=[BATCH, "patches", 2], role="places", size=1, column_sizes=[40, 40]
)


@pytest.mark.parametrize(
    ("spec", "value", "said"),
    [
        (
            POINTS,
            [[[49.0, 3.0]]],
            r"input_points holds 49.0 at \[0, 0, 0\]; it takes pixels from 0 to 48 of the prepared",
        ),
        (LABELS, [[2]], r"input_labels holds 2 at \[0, 0\]; it takes 1 for a point of the object, 0 for another"),
        (PIXELS, np.zeros((1, 3, 4, 4)), r"pixel_values needs the axes \[batch_size, 1, 4, 4\], got .* \[1, 3"),
        (POINTS, None, "missing input input_points"),
        (PLACES, [[[0, 40]]], r"holds 40 at \[0, 0, 1\]; it takes columns and rows below \[40, 40\], or -1 and -1 for"),
        (PLACES, [[[2, -1]]], r"image_position_ids holds -1 at \[0, 0, 1\]; it takes columns and rows below"),
    ],
)
def test_bad_input_is_one_sentence(spec: InputSpec, value: Any, said: str) -> None:
    with pytest.raises(PosexportError, match=said) as caught:
        prepare({spec.name: value}, [spec], LengthContract())
    assert "\n" not in str(caught.value)


def test_padding_points_are_taken() -> None:
    drawn = {
        each.name: example_input(each, [2, 9, 2][: len(each.axes)], np.random.default_rng(0))
        for each in (POINTS, LABELS)
    }
    assert drawn["input_points"].max() > 24
    drawn["input_points"][0, 0] = -10
    drawn["input_labels"][0, 0] = -10
    prepare(drawn, [POINTS, LABELS], LengthContract())


@pytest.mark.parametrize("patches", [1, 36, 108, 1152])
def test_drawn_places_are_within_the_tables(patches: int) -> None:
    drawn = example_input(PLACES, [8, patches, 2], np.random.default_rng(0))
    assert len(np.unique(drawn[0], axis=0)) == patches
    prepare({PLACES.name: drawn}, [PLACES], LengthContract())


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"size_steps": {"height": 8, "width": 8}}, "height 5, this bundle takes multiples of 8"),
        ({"min_sizes": {"height": 8, "width": 8}}, "height 5, this bundle needs at least 8; enlarge the image"),
    ],
)
def test_an_image_smaller_than_a_patch(limits: dict[str, Any], said: str) -> None:
    spec = InputSpec(name="pixel_values", dtype="float32", axes=[BATCH, 3, "height", "width"], role="values")
    with pytest.raises(PosexportError, match=said) as caught:
        prepare({"pixel_values": np.zeros((1, 3, 5, 16), np.float32)}, [spec], LengthContract(**limits))
    assert "\n" not in str(caught.value)


def test_a_picture_without_a_size() -> None:
    def forward(pixel_values: Any) -> None: ...

    with pytest.raises(PosexportError, match="x says image_size = None; it must say the sides of an image in pixels"):
        inputs_of("x", model(forward))


def test_a_checkpoint_for_a_task_that_it_was_not_trained_for(tmp_path: Path) -> None:
    """transformers draws the weights of a head at random where the checkpoint has none."""
    loading = {
        "missing_keys": {"classifier.weight", "classifier.bias"},
        "mismatched_keys": set(),
        "unexpected_keys": set(),
    }
    loaded = SimpleNamespace(
        from_pretrained=lambda *_, **__: (nn.Linear(1, 1), loading), __name__="XForTokenClassification"
    )
    library = SimpleNamespace(
        AutoConfig=SimpleNamespace(from_pretrained=lambda *_, **__: None),
        XForTokenClassification=loaded,
        __version__="5",
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "architectures": ["XForTokenClassification"]}))
    directory = Directory(tmp_path)
    weights = {"weights": SimpleNamespace(shapes={}), "adapter": None, "adapters": {}, "stored_rows": None}
    checkpoint: Any = SimpleNamespace(config=Config(directory), files=directory, below="", dropped={}, **weights)
    said = r"no classifier.bias for XForTokenClassification \(and 1 more\); choose the task that it was trained for"
    with pytest.raises(PosexportError, match=said):
        _load(library, checkpoint, TASKS["token-classification"])


class Compared(nn.Module):
    """Texts with images: ``texts`` says how many of them belong to an image."""

    def __init__(self, texts: str) -> None:
        super().__init__()
        self.texts = texts
        self.config = SimpleNamespace(**TEXT, vision_config=SimpleNamespace(image_size=4, num_channels=1))
        self.config.get_text_config = lambda: SimpleNamespace(**TEXT)

    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor, return_dict: bool = True
    ) -> dict[str, torch.Tensor]:
        text, image = input_ids.sum(1).float(), pixel_values.mean((1, 2, 3))
        if self.texts == "of each image":
            return {"logits": (image[:, None] + text.reshape(len(image), -1))[:, None]}
        return {"logits": (image + text if self.texts == "pairs" else image[:, None] + text)[:, None]}


@pytest.mark.parametrize(
    ("texts", "kind", "images"),
    [
        ("any", "TransformersModule", "image_batch_size"),
        ("of each image", "TextsOfImages", "image_batch_size"),
        ("pairs", "SymbolicSizes", BATCH),
    ],
)
def test_how_texts_belong_to_images(texts: str, kind: str, images: str) -> None:
    module = module_for_task("x", Compared(texts), TASKS["zero-shot-object-detection"], with_positions=False)
    assert type(module).__name__ == kind
    assert module.inputs[-1].axes[0] == images
    if isinstance(module, TextsOfImages):
        assert module.limits(Limits()).paddings == ["right", "ragged-right"]
        ids, pixels = torch.arange(1, 9).reshape(4, 2), torch.randn(2, 1, 4, 4)
        logits = module(input_ids=ids, pixel_values=pixels)["logits"]
        expected = pixels.mean((1, 2, 3))[:, None] + torch.tensor([[3.0, 7.0], [11.0, 15.0]])
        assert torch.equal(logits[:, 0], expected)
        # no equal share: from the first text on again
        shared = module(input_ids=ids[:3], pixel_values=pixels)["logits"]
        assert torch.equal(shared[1, 0], pixels[1].mean() + torch.tensor([11.0, 3.0]))
    assert isinstance(module, SymbolicSizes) is (texts != "any")
