"""Inputs of models of transformers by the names of their parameters, and what the runtime says of bad ones."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posexport.errors import PosexportError
from posexport.example_inputs import example_input
from posexport.runtime.feeds import _check_values
from posexport.spec import BATCH, SEQUENCE, Limits
from posexport.tasks.zero_shot_object_detection import TASK
from posexport.through.inputs import inputs_of
from posexport.through.module import EveryText, SymbolicSizes, module_for_task

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
        ("of each image", "EveryText", "image_batch_size"),
        ("pairs", "SymbolicSizes", BATCH),
    ],
)
def test_how_texts_belong_to_images(texts: str, kind: str, images: str) -> None:
    module = module_for_task("x", Compared(texts), TASK, with_positions=False)
    assert type(module).__name__ == kind
    assert module.inputs[-1].axes[0] == images
    if isinstance(module, EveryText):
        assert module.limits(Limits()).paddings == ["right", "ragged-right"]
        ids, pixels = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.randn(2, 1, 4, 4)
        logits = module(input_ids=ids, pixel_values=pixels)["logits"]
        assert torch.equal(logits[:, 0], pixels.mean((1, 2, 3))[:, None] + torch.tensor([3.0, 7.0, 11.0]))
    assert isinstance(module, SymbolicSizes) is (texts != "any")
