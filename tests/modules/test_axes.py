"""Axes of users' modules are found from examples alone: what varies, with what, in which steps, from which size on.

The modules are small ones as users write them; none of them uses anything of posexport.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.axes import discover
from posexport.modules.live_module import module_source
from posexport.proof.grid.grid import grid
from posexport.sources.source import Source
from tests.small import in_short, proven
from tests.tolerances import agree

D, H = 24, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        result: Tensor = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        return result


class Interpolated(nn.Module):
    """A ViT whose table of positions is resized to the image's grid of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.table = nn.Conv2d(3, D, 8, 8), nn.Parameter(torch.randn(1, D, 4, 4))
        self.cls, self.block, self.head = nn.Parameter(torch.randn(1, 1, D)), Block(), nn.Linear(D, 5)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        x = self.patch(pixel_values)
        x = x + F.interpolate(self.table, size=x.shape[-2:], mode="bilinear", align_corners=False)
        x = self.block(torch.cat([self.cls.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1))
        return {"hidden": x, "logits": self.head(x[:, 0])}


class Patches(nn.Module):
    """Patches by reshaping: sides must be multiples of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = nn.Linear(192, D), Block()

    def forward(self, image: Tensor) -> Tensor:
        B, C, height, width = image.shape
        x = image.view(B, C, height // 8, 8, width // 8, 8).permute(0, 2, 4, 1, 3, 5)
        result: Tensor = self.block(self.embed(x.reshape(B, (height // 8) * (width // 8), 192)))
        return result


class Sound(nn.Module):
    """Two convolutions that reach over 80 samples, and a table of 100 frames."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.block = nn.Conv1d(1, D, 40, 20), nn.Conv1d(D, D, 3, 2), Block()
        self.table = nn.Parameter(torch.randn(100, D))

    def forward(self, samples: Tensor) -> Tensor:
        x = self.second(F.gelu(self.first(samples[:, None]))).transpose(1, 2)
        result: Tensor = self.block(x + self.table[: x.shape[1]])
        return result


class Conformer(nn.Module):
    """Frames [B, T, mel]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv = nn.Linear(20, D), nn.Conv1d(D, D, 5, padding=2, groups=D)
        self.block = Block()

    def forward(self, features: Tensor) -> Tensor:
        x = self.embed(features)
        result: Tensor = self.block(x + self.conv(x.transpose(1, 2)).transpose(1, 2))
        return result


class Mel(nn.Module):
    """Frames [B, mel, T], halved by a convolution of stride 2, as Whisper does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(20, D, 3, padding=1), nn.Conv1d(D, D, 3, stride=2, padding=1)
        self.block = Block()

    def forward(self, input_features: Tensor) -> Tensor:
        result: Tensor = self.block(F.gelu(self.second(F.gelu(self.first(input_features)))).transpose(1, 2))
        return result


class Towers(nn.Module):
    """Ids and pixels; ``free``: every text with every image, so that not even the batch is shared."""

    def __init__(self, free: bool) -> None:
        super().__init__()
        self.token, self.block, self.vision, self.free = nn.Embedding(17, D), Block(), Interpolated(), free

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        text = self.block(self.token(input_ids)).mean(1)
        image = self.vision(pixel_values)["hidden"].mean(1)
        return text @ image.T if self.free else torch.cat([text, image], -1)


class Rows(nn.Module):
    """Tokens [T, C] without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(x[None])[0]
        return result


class Causal(Rows):
    def forward(self, x: Tensor) -> Tensor:
        seen = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        result: Tensor = self.block(x[None], seen)[0]
        return result


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, memory: Tensor, x: Tensor) -> Tensor:
        q, k = (part.unflatten(-1, (H, D // H)).transpose(1, 2) for part in (self.q(x), self.k(memory)))
        return x + F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(2)


class Text(nn.Module):
    def __init__(self, reads_mask: bool = True) -> None:
        super().__init__()
        self.token, self.block, self.reads_mask = nn.Embedding(17, D), Block(), reads_mask

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, None, None].bool() if self.reads_mask else None
        result: Tensor = self.block(self.token(input_ids), mask)
        return result


class Baked(nn.Module):
    """A state for two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.state, self.block = nn.Embedding(17, D), nn.Parameter(torch.randn(2, 1, D)), Block()

    def forward(self, input_ids: Tensor) -> Tensor:
        result: Tensor = self.block(self.token(input_ids) + self.state)
        return result


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(D, H, 32)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


class Blocks(nn.Module):
    """Attention within blocks of 4 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.block = nn.Embedding(17, D), Block()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.token(input_ids)
        B, T, _ = x.shape
        result: Tensor = self.block(x.view(B * (T // 4), 4, D)).view(B, T, D)
        return result


class Biased(nn.Module):
    """The user computes the attention bias [H, T, T] outside."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.block = nn.Embedding(17, D), Block()

    def forward(self, input_ids: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = self.block(self.token(input_ids), bias)
        return result


class Styled(Biased):
    """Beside the bias, tokens of a style without a batch, which are averaged."""

    def forward(self, input_ids: Tensor, bias: Tensor, style: Tensor) -> Tensor:  # type: ignore[override]
        result: Tensor = self.block(self.token(input_ids) + style.mean(0), bias)
        return result


B, T, S, FREE = "batch_size", "sequence_length", "encoder_sequence_length", "pixel_values_batch_size"

Case = tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]], list[list[str | int]], list[list[str | int]]]
#: the module; the shapes of its example, ids where the input's name says so; the axes of its inputs and outputs
CASES: dict[str, Case] = {
    "images": (
        Interpolated,
        {"pixel_values": (2, 3, 32, 40)},
        [[B, 3, "height", "width"]],
        [[B, "num_patches", D], [B, 5]],
    ),
    "patches": (Patches, {"image": (2, 3, 48, 32)}, [[B, 3, "height", "width"]], [[B, "num_patches", D]]),
    "sound": (Sound, {"samples": (2, 1600)}, [[B, "num_samples"]], [[B, "num_frames", D]]),
    "frames": (Conformer, {"features": (2, 30, 20)}, [[B, T, 20]], [[B, T, D]]),
    "mel": (Mel, {"input_features": (2, 20, 60)}, [[B, 20, T]], [[B, "num_frames", D]]),
    "towers": (
        lambda: Towers(False),
        {"input_ids": (2, 9), "pixel_values": (2, 3, 32, 32)},
        [[B, T], [B, 3, "height", "width"]],
        [[B, 2 * D]],
    ),
    "free towers": (
        lambda: Towers(True),
        {"input_ids": (2, 9), "pixel_values": (2, 3, 32, 32)},
        [[B, T], [FREE, 3, "height", "width"]],
        [[B, FREE]],
    ),
    "no batch": (Rows, {"x": (9, D)}, [[T, D]], [[T, D]]),
    "causal without a batch": (Causal, {"x": (9, D)}, [[T, D]], [[T, D]]),
    "cross": (Cross, {"memory": (2, 6, D), "x": (2, 9, D)}, [[B, S, D], [B, T, D]], [[B, T, D]]),
    "cross of one size": (Cross, {"memory": (2, 9, D), "x": (2, 9, D)}, [[B, S, D], [B, T, D]], [[B, T, D]]),
    "one token": (Text, {"input_ids": (1, 1), "attention_mask": (1, 1)}, [[B, T], [B, T]], [[B, T, D]]),
    "as many rows as tokens": (Text, {"input_ids": (4, 4), "attention_mask": (4, 4)}, [[B, T], [B, T]], [[B, T, D]]),
    "unread mask": (
        lambda: Text(False),
        {"attention_mask": (2, 9), "input_ids": (2, 9)},
        [[B, T], [B, T]],
        [[B, T, D]],
    ),
    "baked batch": (Baked, {"input_ids": (2, 9)}, [[2, T]], [[2, T, D]]),
    "sequence first": (SequenceFirst, {"x": (9, 2, D)}, [[T, B, D]], [[T, B, D]]),
    "blocks": (Blocks, {"input_ids": (2, 8)}, [[B, T]], [[B, T, D]]),
    "cross of one row": (Cross, {"memory": (1, 6, D), "x": (1, 9, D)}, [[B, S, D], [B, T, D]], [[B, T, D]]),
    "as many heads as tokens": (Biased, {"input_ids": (2, H), "bias": (H, H, H)}, [[B, T], [H, T, T]], [[B, T, D]]),
    "two sequences of one size": (
        Styled,
        {"input_ids": (2, 9), "bias": (H, 9, 9), "style": (9, D)},
        [[B, T], [H, T, T], [S, D]],
        [[B, T, D]],
    ),
    "bias": (Biased, {"input_ids": (2, 9), "bias": (H, 9, 9)}, [[B, T], [H, T, T]], [[B, T, D]]),
}
#: sizes to run bundles at that neither the example nor the trace has
SIZES = {B: 3, T: 20, S: 12, FREE: 5, "height": 40, "width": 56, "num_samples": 733}


def draw(name: str, shape: tuple[int, ...]) -> Tensor:
    if name == "attention_mask":
        return torch.ones(shape, dtype=torch.int64)
    generator = torch.Generator().manual_seed(len(shape))
    if name == "input_ids":
        ids = torch.randint(17, shape, generator=generator)
        ids.flatten()[-1] = 16
        return ids
    return torch.randn(shape, generator=generator)


def made(case: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(1)
    make, shapes, _, _ = CASES[case]
    return make().eval(), {name: draw(name, shape) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def source_of() -> Callable[[str], Source]:
    known: dict[str, Source] = {}

    def source(case: str) -> Source:
        if case not in known:
            known[case] = module_source(*made(case))
        return known[case]

    return source


# -- what is found ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_axes_are_found(source_of: Callable[[str], Source], case: str) -> None:
    source = source_of(case)
    assert [spec.axes for spec in source.inputs] == CASES[case][2]
    assert [spec.axes for spec in source.outputs] == CASES[case][3]


@pytest.mark.parametrize("case", CASES)
def test_finding_them_is_cheap(source_of: Callable[[str], Source], case: str) -> None:
    (note,) = source_of(case).notes
    assert 2 < int(note.removeprefix("axes found in ").split()[0]) <= 40


def test_least_sizes_steps_and_ends_are_found(source_of: Callable[[str], Source]) -> None:
    limits = {case: source_of(case).limits for case in CASES}
    assert limits["images"].min_sizes == {"height": 8, "width": 8}
    assert limits["images"].size_steps == {}
    assert limits["patches"].size_steps == {"height": 8, "width": 8}
    assert limits["sound"].min_sizes == {"num_samples": 80}
    # 100 frames of 40 samples, and one sample less than makes another
    assert limits["sound"].max_sizes == {"num_samples": 80 + 40 * 99 + 39}
    assert limits["blocks"].size_steps == {T: 4}
    assert {case for case in CASES if limits[case].min_length > 1} == set()


def test_the_grid_varies_them_within_what_is_taken(source_of: Callable[[str], Source]) -> None:
    for case in ("images", "patches", "sound"):
        source = source_of(case)
        points = grid(source.limits, source.inputs)
        taken = [dict(point.sizes) for point in points if not point.must_be_rejected]
        assert {point.batch for point in points} == {1, 3}
        for axis in taken[0]:
            sizes = {each[axis] for each in taken}
            assert len(sizes) >= 5
            assert min(sizes) >= source.limits.min_sizes.get(axis, 1)
            assert {size % source.limits.size_steps.get(axis, 1) for size in sizes} == {0}
    patches = source_of("patches")
    rejected = [p for p in grid(patches.limits, patches.inputs) if p.must_be_rejected]
    assert [dict(point.sizes) for point in rejected] == [{"height": 9, "width": 16}, {"height": 16, "width": 9}]
    blocks = source_of("blocks")
    assert {p.length % 4 for p in grid(blocks.limits, blocks.inputs) if not p.must_be_rejected} == {0}
    both = source_of("towers")
    assert len({p.sizes for p in grid(both.limits, both.inputs, lengths=[5, 17, 33, 65])}) >= 8


def test_a_batch_that_does_not_vary_is_remarked_with_its_line(source_of: Callable[[str], Source]) -> None:
    (remark,) = source_of("baked batch").remarks
    assert remark.startswith("no input has a batch axis that varies: axis 0 of input_ids stays 2, since the module")
    assert "(test_axes.py line" in remark
    assert "self.token(input_ids) + self.state" in remark
    assert source_of("no batch").remarks == []


# -- what the user says -----------------------------------------------------------------------------


def test_the_user_s_axes_hold() -> None:
    module, inputs = made("images")
    source = module_source(module, inputs, {"pixel_values": ["batch", 3, 32, "image_width"]})
    assert source.inputs[0].axes == [B, 3, 32, "image_width"]
    assert source.outputs[0].axes == [B, "output_image_width", D]
    assert source.limits.min_sizes == {"image_width": 8}
    module, inputs = made("cross of one size")
    source = module_source(module, inputs, {"memory": [B, 9, D]})
    assert [spec.axes for spec in source.inputs] == [[B, 9, D], [B, T, D]]


def test_an_axis_that_the_user_names_and_that_does_not_vary_is_an_error() -> None:
    module, inputs = made("images")
    with pytest.raises(PosexportError, match=r"axis image_height \(axis 1 of pixel_values\) does not vary: .*line"):
        module_source(module, inputs, {"pixel_values": [B, "image_height", 32, 40]})


def test_where_calls_run_out_the_first_two_axes_are_batch_and_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "MOST", 3)
    monkeypatch.setattr(discover, "_PER_AXIS", 0)
    source = module_source(*made("frames"))
    assert source.inputs[0].axes == [B, T, 20]
    assert "was not found in 3 calls" in source.remarks[0]


# -- bundles ----------------------------------------------------------------------------------------


def equal(module: nn.Module, session: Any, sizes: Mapping[str, int], axes: Mapping[str, list[str | int]]) -> None:
    feeds = {n: draw(n, tuple(sizes[a] if isinstance(a, str) else a for a in shape)) for n, shape in axes.items()}
    with torch.no_grad():
        wanted = module(**feeds)
    wanted = wanted if isinstance(wanted, dict) else {"output": wanted}
    got = session.run({name: tensor.numpy() for name, tensor in feeds.items()})
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        agree(got[name], tensor, "model in float32", np.float32)


#: one for each kind of axis; what differs from these in names alone is left to --all
SHORT = {("images", "cpu"), ("patches", "portable"), ("sound", "cpu"), ("cross", "portable"), ("towers", "cpu")}
PAIRS = [(case, target) for case in CASES for target in ("portable", "cpu")]


@pytest.mark.all(but=("sound",))
@pytest.mark.parametrize(("case", "target"), in_short(PAIRS, lambda *pair: pair in SHORT))
def test_bundles_answer_as_the_module_at_other_sizes(tmp_path: Path, case: str, target: str) -> None:
    module, inputs = made(case)
    axes: dict[str, list[str | int]] = dict(zip(inputs, CASES[case][2], strict=True))
    # a sequence's whole grid goes to 2048 tokens; images and sounds have theirs
    lengths = [4, 20, 64] if any(T in each for each in axes.values()) else None
    proven(module, tmp_path / "b", example_inputs=inputs, target=target, lengths=lengths)
    session = posexport.load(tmp_path / "b")
    for changed in ({}, {B: 1, "height": 16, "width": 24, "num_samples": 200, T: 8}):
        equal(module, session, {**SIZES, **changed}, axes)


@pytest.mark.parametrize(
    ("case", "shape", "words"),
    [
        ("patches", (1, 3, 20, 16), "height 20, this bundle takes multiples of 8"),
        ("sound", (1, 79), "num_samples 79, this bundle needs at least 80; pad it"),
        ("sound", (1, 4080), "num_samples 4080, this bundle takes at most 4079; shorten it"),
    ],
)
def test_what_the_module_does_not_take_is_refused(
    tmp_path: Path, case: str, shape: tuple[int, ...], words: str
) -> None:
    import onnxruntime

    module, inputs = made(case)
    (name,) = inputs
    done = posexport.convert(module, tmp_path / "b", example_inputs=inputs, verify=False)
    assert done.manifest is not None
    feeds = {name: draw(name, shape).numpy()}
    with pytest.raises(PosexportError, match=words):
        posexport.load(tmp_path / "b").run(feeds)
    graph = onnxruntime.InferenceSession(tmp_path / "b" / "model.onnx", providers=["CPUExecutionProvider"])
    said = {"patches": "image height not a multiple of 8 pixels", "sound": "sound (shorter|longer) than [0-9]+ samples"}
    with pytest.raises(Exception, match=said[case]):
        graph.run(None, feeds)


# -- where trying one more misleads -----------------------------------------------------------------


class Windows(nn.Module):
    """Patches of two pixels in windows of four by four: a stride leaves out the pixel that one more side adds."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.block = nn.Conv2d(3, D, 2, 2), Block()

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).permute(0, 2, 3, 1)
        B, height, width, _ = x.shape
        x = x.view(B, height // 4, 4, width // 4, 4, D).transpose(2, 3).reshape(-1, 16, D)
        pooled: Tensor = self.block(x).view(B, -1, D).mean(1)
        return pooled


class Boxes(nn.Module):
    """Words with four numbers each, and positions that count the words alone, as RoBERTa's do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.coordinates = nn.Embedding(31, D, padding_idx=1), nn.Embedding(101, D)
        self.table, self.block = nn.Embedding(42, D), Block()

    def forward(self, input_ids: Tensor, bbox: Tensor) -> Tensor:
        real = input_ids.ne(1).long()
        x = self.words(input_ids) + self.table(real.cumsum(1) * real + 1)
        result: Tensor = self.block(x + self.coordinates(bbox[..., 0]) + self.coordinates(bbox[..., 3]))
        return result


class Frames(nn.Module):
    """Frames of images, with a table of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.table = nn.Conv2d(3, D, 8, 8), nn.Parameter(torch.randn(16, D))
        self.block = Block()

    def forward(self, video: Tensor) -> Tensor:
        B, frames = video.shape[:2]
        x = self.patch(video.flatten(0, 1)).flatten(2).mean(2).view(B, frames, D)
        result: Tensor = self.block(x + self.table[:frames]).mean(1)
        return result


class Native(nn.Module):
    """A table for its own number of rows, resized for every other one, by a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.table, self.block = nn.Conv2d(3, D, 4, 4), nn.Parameter(torch.randn(15, D)), Block()

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image)
        rows, table = 2 * x.shape[2] - 1, self.table
        if table.shape[0] != rows:
            table = F.interpolate(table.T[None], size=rows, mode="linear")[0].T
        y: Tensor = self.block(x.flatten(2).transpose(1, 2)) + table.mean(0)
        return y


def test_a_stride_that_leaves_out_a_pixel_is_a_step() -> None:
    torch.manual_seed(0)
    source = module_source(Windows().eval(), {"image": torch.randn(2, 3, 32, 48)})
    assert source.limits.size_steps == {"height": 8, "width": 8}
    assert source.inputs[0].axes == ["batch_size", 3, "height", "width"]


def test_what_a_module_leaves_out_is_no_axis_and_padding_s_ids_are_no_tokens() -> None:
    torch.manual_seed(0)
    example = {"input_ids": torch.randint(2, 31, (2, 19)), "bbox": torch.randint(0, 101, (2, 19, 4))}
    example["input_ids"][1, 13:] = 1
    source = module_source(Boxes().eval(), example)
    assert [spec.axes for spec in source.inputs] == [["batch_size", T], ["batch_size", T, 4]]
    assert source.limits.max_length == 40


def test_a_table_for_another_axis_than_tokens_ends_it() -> None:
    torch.manual_seed(0)
    source = module_source(Frames().eval(), {"video": torch.randn(2, 5, 3, 16, 24)})
    assert source.limits.max_sizes == {"depth": 16}


def test_the_size_that_a_module_has_a_line_for_is_not_the_one_it_is_traced_at(tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = {"image": torch.randn(2, 3, 32, 32)}
    module = Native().eval()
    posexport.convert(module, tmp_path / "b", example_inputs=example, verify=False)
    session = posexport.load(tmp_path / "b")
    for image in (example["image"], torch.randn(1, 3, 44, 32), torch.randn(1, 3, 20, 40)):
        expected = module(image).detach().numpy()
        agree(session.run({"image": image.numpy()})["output"], expected, "model in float32", np.float32)


class Masked(nn.Module):
    """An image with a mask of pixels that is resized to the grid, as DETR's: alone it would take any size."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.block = nn.Conv2d(3, D, 8, 8), Block()

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> Tensor:
        x = self.patch(pixel_values)
        kept = F.interpolate(pixel_mask[:, None].float(), size=x.shape[-2:]).flatten(2)[:, :, None] > 0
        result: Tensor = self.block(x.flatten(2).transpose(1, 2), kept)
        return result


def test_a_mask_of_pixels_has_the_image_s_sides() -> None:
    torch.manual_seed(0)
    example = {"pixel_values": torch.randn(2, 3, 40, 48), "pixel_mask": torch.ones(2, 40, 48, dtype=torch.long)}
    source = module_source(Masked().eval(), example)
    sides = ["height", "width"]
    assert [spec.axes for spec in source.inputs] == [["batch_size", 3, *sides], ["batch_size", *sides]]


class FourInputs(nn.Module):
    """A forecaster: values and times of the past, and of what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.times = nn.Linear(6, 20), nn.Linear(4, 20)
        self.transformer = nn.Transformer(20, 4, 1, 1, 20, batch_first=True)

    def forward(self, x_enc: Tensor, x_mark_enc: Tensor, x_dec: Tensor, x_mark_dec: Tensor) -> Tensor:
        past, coming = self.values(x_enc) + self.times(x_mark_enc), self.values(x_dec) + self.times(x_mark_dec)
        result: Tensor = self.transformer(past, coming)
        return result


def test_more_inputs_may_take_more_calls() -> None:
    example = (torch.randn(2, 24, 6), torch.randn(2, 24, 4), torch.randn(2, 15, 6), torch.randn(2, 15, 4))
    source = module_source(FourInputs().eval(), example)
    assert [spec.axes for spec in source.inputs] == [
        [B, T, 6],
        [B, T, 4],
        [B, "encoder_sequence_length", 6],
        [B, "encoder_sequence_length", 4],
    ]


class WithLoss(nn.Module):
    """Rows, and one number for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), x.square().mean()


def test_a_number_for_the_batch_does_not_tell_that_its_rows_depend_on_one_another() -> None:
    assert module_source(WithLoss().eval(), (torch.randn(4, 6),)).inputs[0].axes == [B, 6]


class QueriesKeysValues(nn.Module):
    """Three inputs of equal channels, of which no set varies."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(20, 20) for _ in range(3))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (self.q(q) @ self.k(k).mT).softmax(-1) @ self.v(v)


def test_sizes_that_were_refused_are_not_tried_again() -> None:
    example = (torch.randn(2, 7, 20), torch.randn(2, 17, 20), torch.randn(2, 17, 20))
    source = module_source(QueriesKeysValues().eval(), example)
    keys = [B, "encoder_sequence_length", 20]
    assert [spec.axes for spec in source.inputs] == [[B, T, 20], keys, keys]


class SquareImage(nn.Module):
    """Rows and columns of as many patches as there are tokens, by a square root that the trace makes a number of."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.layer = nn.Conv2d(4, 20, 1), nn.Linear(20, 20)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer(self.patch(image).flatten(2).mT)
        side = math.isqrt(x.shape[1])
        return x.mT.unflatten(-1, (side, side))


def test_an_image_of_equal_sides_keeps_the_example_s_where_the_trace_fixes_them(tmp_path: Path) -> None:
    example = {"image": torch.randn(2, 4, 8, 8)}
    done = posexport.convert(SquareImage().eval(), tmp_path / "b", example_inputs=example, verify=False)
    assert done.manifest is not None
    assert done.manifest.inputs[0].axes == [B, 4, 8, 8]


class Denoiser(nn.Module):
    """An image of the size that its whole patches have."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.layer = nn.Conv2d(4, 20, 2, 2), nn.TransformerEncoderLayer(20, 5, 20, batch_first=True)
        self.back = nn.ConvTranspose2d(20, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x)
        result: Tensor = self.back(self.layer(h.flatten(2).mT).mT.reshape(h.shape))
        return result


def test_whole_patches_put_together_have_sizes_of_their_own(tmp_path: Path) -> None:
    module, example = Denoiser().eval(), torch.randn(2, 4, 12, 12)
    assert module_source(module, example).outputs[0].axes == [B, 4, "output_height", "output_width"]
    assert posexport.convert(module, tmp_path / "b", example_inputs=example, verify=False)
    x = torch.randn(1, 4, 7, 10)
    output = posexport.load(tmp_path / "b").run({"x": x.numpy()})["output"]
    agree(output, module(x).detach().numpy(), "model in float32", np.float32)


COLUMNS = (7, 11, 3, 9)


class Table(nn.Module):
    """Columns of categories, each with an embedding of its own, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(count, 20) for count in COLUMNS)
        self.numbers, self.layer = nn.Linear(6, 20), nn.TransformerEncoderLayer(20, 5, 20, batch_first=True)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        embedded = [column(categories[:, place]) for place, column in enumerate(self.columns)]
        result: Tensor = self.layer(torch.stack([*embedded, self.numbers(numbers)], 1))[:, 0]
        return result


def test_columns_of_ids_are_no_sequence(tmp_path: Path) -> None:
    categories = torch.stack([torch.tensor([count - 1, *torch.randint(0, count, (3,))]) for count in COLUMNS], 1)
    example = {"categories": categories, "numbers": torch.randn(4, 6)}
    source = module_source(Table().eval(), example)
    assert [spec.axes for spec in source.inputs] == [[B, 4], [B, 6]]
    assert source.inputs[0].column_sizes == list(COLUMNS)
    assert posexport.convert(Table().eval(), tmp_path / "b", example_inputs=example).good
    with pytest.raises(PosexportError, match=r"categories holds 3 at \[0, 2\]; it takes ids below \[7, 11, 3, 9\]"):
        posexport.load(tmp_path / "b").run({"categories": [[6, 10, 3, 8]], "numbers": np.zeros((1, 6), np.float32)})


class FixedImage(nn.Module):
    """A table with a row for each of 16 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.places = nn.Parameter(torch.randn(1, 16, 8))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return (self.patches(pixels).flatten(2).transpose(1, 2) + self.places).mean(1)


def test_an_image_size_that_is_fixed_is_said_with_the_line(tmp_path: Path) -> None:
    example = {"pixels": torch.randn(2, 3, 32, 32)}
    done = posexport.convert(FixedImage().eval(), tmp_path / "b", example_inputs=example, verify=False)
    (sentence,) = [remark for remark in done.remarks if "image size" in remark]
    assert sentence.startswith("the image size of pixels stays 32x32, since at another size the module raised ")
    assert "test_axes.py" in sentence
    assert "self.places" in sentence
