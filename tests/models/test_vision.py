"""Vision transformers and encodings of images: sizes, positions, resized tables, and what is refused."""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.encodings.axial import Axial
from posexport.encodings.beit import Beit
from posexport.encodings.build import build
from posexport.encodings.encoding import ENCODINGS
from posexport.encodings.positions import Positions
from posexport.encodings.resize import cubic_weights, linear_weights, resize
from posexport.encodings.rope.axial import RopeAxial
from posexport.encodings.rope.mrope import RopeMrope
from posexport.encodings.vit_interpolated import VitInterpolated
from posexport.errors import PosexportError
from posexport.conversion.export.build import build as export
from posexport.models.vision import Vision, VisionConfig
from posexport.graph.ops.grid_scores import GRID_SCORES
from posexport.sources.definitions.vision import VISION
from posexport.sources.source import Source, draw, model_of
from tests.small import recipe
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
IMAGES = ("axial", "beit", "rope-axial", "rope-mrope", "vit-interpolated")
CPU = torch.device("cpu")


def vision(name: str, **settings) -> Vision:
    config = VisionConfig(**{"hidden": 20, "layers": 1, "patch": 3, "rows": 4, "columns": 5, **settings})
    sizes = VISION.sizes(config)
    model = VISION.make(config, build(name, sizes, {})[0], "features", 3).eval()
    draw(model, 1)
    return model.double()


def pixels(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_kind_takes_encodings_of_images_and_the_control():
    taken = {name for name, entry in ENCODINGS.items() if VISION.takes(entry)}
    assert {*IMAGES, "nope"} <= taken
    assert not taken & {"swin", "swinv2", "absolute", "rope", "t5"}


# resized tables


@pytest.mark.parametrize("new", [(7, 3), (1, 1), (4, 6), (29, 15), (2, 40)])
@pytest.mark.parametrize("old", [(4, 6), (1, 1), (3, 2), (14, 14)])
def test_resized_is_interpolate(old, new):
    table_RCD = pixels(*old, 5)
    for mode, matrix in (("bicubic", cubic_weights), ("bilinear", linear_weights)):
        by_size = [matrix(n, o, torch.float64, CPU) for n, o in zip(new, old, strict=True)]
        want = F.interpolate(table_RCD.permute(2, 0, 1)[None], size=new, mode=mode, align_corners=False)
        got = resize(table_RCD, *by_size)
        assert got.shape == (*new, 5)
        agree(got, want[0].permute(1, 2, 0), "operator", np.float64)
        if old == new:
            assert torch.equal(got, table_RCD)


def test_half_precision_table_is_resized_in_float32():
    encoding = VitInterpolated(hidden=6, rows=5, columns=4)
    torch.nn.init.normal_(encoding.table)
    encoding.half()
    x = torch.zeros(1, 1 + 7 * 9, 6, dtype=torch.float16)
    at = Positions.image(7, 9, prefix=1)
    got = encoding.embed(x, at)
    want = encoding.double().embed(x.double(), at)
    assert got.dtype == torch.float16
    # one rounding
    assert (got.double() - want).abs().max() <= 0.51 * 2**-10 * want.abs().max()


# the definition


@pytest.mark.parametrize("name", IMAGES)
def test_pixels_that_fill_no_patch_are_left_out(name):
    model = vision(name)
    whole = pixels(2, 3, 13, 20)
    (got,), (want,) = model(pixel_values=whole), model(pixel_values=whole[:, :, :12, :18])
    assert got.shape == (2, 1 + 4 * 6, 20)
    assert torch.equal(got, want)


@pytest.mark.parametrize("name", IMAGES)
def test_rows_are_not_columns(name):
    """Patches turned over the diagonal give other outputs, even where nothing but positions tells."""
    model = vision(name)
    with torch.no_grad():
        model.patches.weight.copy_(model.patches.weight.mean((2, 3), keepdim=True).expand_as(model.patches.weight))
        image = pixels(1, 3, 4, 4).repeat_interleave(3, 2).repeat_interleave(3, 3)
        straight = model(pixel_values=image)[0][:, 1:].unflatten(1, (4, 4))
        turned = model(pixel_values=image.mT)[0][:, 1:].unflatten(1, (4, 4)).transpose(1, 2)
    assert (straight - turned).abs().max() > 0.02 * straight.abs().max()


def test_the_answer_is_read_from_the_class_token_or_the_patches():
    image, outputs = pixels(2, 3, 9, 12), {}
    for settings in ({}, {"pooling": "mean"}, {"cls": False, "registers": 2}, {"pooled_norm": True}):
        config = VisionConfig(hidden=20, layers=1, patch=3, rows=4, columns=5, **settings)
        encoding, _ = build("vit-interpolated", VISION.sizes(config), {})
        model = Vision(config, encoding, 3).double().eval()
        draw(model, 1)
        states = Vision(config, encoding).double().eval()
        states.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("pooled")})
        (x,) = states(pixel_values=image)
        assert x.shape[1] == config.prefix + 12
        mean = settings.get("pooling") == "mean" or not config.cls
        pooled = x[:, config.prefix :].mean(1) if mean else x[:, 0]
        pooled = (
            F.layer_norm(pooled, (20,), *model.pooled.norm.parameters(), 1e-12) if "pooled_norm" in settings else pooled
        )
        (got,) = model(pixel_values=image)
        assert torch.equal(got, model.pooled.out(pooled))
        outputs[str(settings)] = got
        assert [spec.name for spec in model.outputs] == ["logits"]
    assert len(outputs) == 4


def test_sizes_to_prove_it_at():
    limits, images = vision("vit-interpolated").limits, vision("vit-interpolated").plan.proof_image_sizes
    assert (limits.trained_length, limits.max_length, limits.beyond, limits.patch_size) == (
        21,
        None,
        "interpolate",
        3,
    )
    grids = {(height // 3, width // 3) for height, width in images}
    assert {(1, 1), (4, 5)} <= grids
    assert any(rows != columns for rows, columns in grids)
    assert any(rows * columns < 20 for rows, columns in grids)
    # more than two blocks of queries
    assert any(rows * columns > 256 for rows, columns in grids)
    assert any(height % 3 or width % 3 for height, width in images)


@pytest.mark.all
def test_the_graph_takes_other_sizes(tmp_path):
    """Of a model with both resized tables."""
    config = VisionConfig(hidden=20, layers=1, patch=2, rows=3, columns=4)
    beside = VitInterpolated(hidden=20, rows=3, columns=4)
    model = Vision(config, Beit(heads=5, rows=3, columns=4), beside=beside).eval()
    draw(model, 1)
    source = Source.of(model_of(model, "features"), name="both", kind="builtin", sha256="0" * 64)
    export(source, tmp_path / "model.onnx", recipe())
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for batch, height, width in ((1, 2, 2), (3, 6, 8), (2, 23, 34)):
        image = pixels(batch, 3, height, width).float()
        (got,) = session.run(None, {"pixel_values": image.numpy()})
        with torch.no_grad():
            (want,) = model(pixel_values=image)
        assert got.shape == (batch, 1 + (height // 2) * (width // 2), 20)
        agree(got, want, "model in float32", np.float32)


# positions


def test_mrope_numbers_text_before_an_image_as_qwen2_vl_does():
    """Three tokens of text, then 2 by 3 patches: numbers of transformers' ``get_rope_index``."""
    time = [0, 1, 2, 3, 3, 3, 3, 3, 3]
    row = [0, 1, 2, 3, 3, 3, 4, 4, 4]
    column = [0, 1, 2, 3, 4, 5, 3, 4, 5]
    image = Positions.image(2, 3, prefix=3)
    listed = Positions(image.ids_BT, image.slots_T, torch.tensor([time, row, column])[:, None])
    x = pixels(1, 2, 9, 12)
    encoding = RopeMrope(head_size=12, sections="1,2,3")
    assert torch.equal(encoding.rotate(x, image, "query"), encoding.rotate(x, listed, "query"))
    text = Positions.counted(9)
    same = Positions(text.ids_BT, text.slots_T, text.ids_BT.expand(3, 1, 9))
    assert torch.equal(encoding.rotate(x, text, "key"), encoding.rotate(x, same, "key"))
    assert RopeMrope(head_size=128).sections == [16, 24, 24]


def test_class_tokens_are_not_rotated_and_get_nothing():
    at = Positions.image(2, 3, prefix=2)
    x = pixels(1, 5, 8, 12)
    assert torch.equal(RopeAxial(head_size=12).rotate(x, at, "query")[:, :, :2], x[:, :, :2])
    flat = pixels(1, 8, 20)
    assert torch.equal(Axial(hidden=20).embed(flat, at)[:, :2], flat[:, :2])


def test_bias_is_handed_over_by_offset_not_by_pair():
    encoding = Beit(heads=5, rows=4, columns=4)
    at = Positions.image(9, 7, prefix=1)
    term = encoding.scores(torch.zeros(1, 5, 64, 4), torch.zeros(1, 5, 64, 4), at, at)
    assert term.operator is GRID_SCORES
    assert term.tensors[0].shape == (5, 17 * 13 + 3)
    assert max(tensor.numel() for tensor in term.tensors[1:]) == 64


def test_one_table_for_all_layers_where_shared():
    config = VisionConfig(hidden=20, layers=3, rows=4, columns=4)
    for shared, tables in ((True, 1), (False, 3)):
        model = Vision(config, Beit(heads=5, rows=4, columns=4, shared=shared))
        assert len([name for name, _ in model.named_parameters() if name.endswith("table")]) == tables


# refusals


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("axial", {"hidden": 7}, "axial: hidden must be even, .* got 7"),
        ("axial", {"hidden": 8, "first": "depth"}, "axial: first must be column or row, got 'depth'"),
        ("axial", {"hidden": 8, "base": 1.0}, "base must be a finite number above 1"),
        ("beit", {"heads": 5, "rows": 0}, "beit: rows must be a whole number from 1 on, got 0"),
        ("rope-axial", {"head_size": 6}, "head_size must be a multiple of 4, .* got 6"),
        ("rope-axial", {"head_size": 8, "coordinates": "pixel"}, "coordinates must be index or normalised"),
        ("rope-axial", {"head_size": 8, "frequencies": "none"}, "frequencies must be same or alternating"),
        ("rope-axial", {"head_size": 8, "layout": "none"}, "layout must be half or interleaved"),
        ("rope-mrope", {"head_size": 8, "sections": "1,2,2"}, "three whole numbers .*, 4 together .* got '1,2,2'"),
        ("rope-mrope", {"head_size": 8, "sections": "1,x,2"}, "three whole numbers"),
        ("vit-interpolated", {"hidden": 8, "prefix": -1}, "prefix must be a whole number from 0 on, got -1"),
    ],
)
def test_bad_settings_of_encodings(name, settings, message):
    with pytest.raises(PosexportError, match=message):
        ENCODINGS[name].cls(**settings)


def test_positions_of_a_sequence_are_refused():
    with pytest.raises(PosexportError, match="axial needs the rows and columns of an image"):
        Axial(hidden=4).embed(torch.zeros(1, 3, 4), Positions.counted(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "cls", "cls": False}, "pooling=cls reads the class token"),
        ({"patch": 0}, "patch must be a whole number from 1 on, got 0"),
        ({"registers": -1}, "registers must be a whole number from 0 on"),
        ({"hidden": 21}, "heads"),
    ],
)
def test_bad_settings_of_the_definition(settings, message):
    with pytest.raises(PosexportError, match=message):
        VisionConfig(**settings)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit-model", {"patch_size": [2, 3]}, r"patch_size = \[2, 3\]; only square patches"),
        ("vit-model", {"image_size": [6, 10, 2]}, r"image_size = \[6, 10, 2\]; it must be one number or two"),
        ("vit-model", {"image_size": 1}, "an image must hold a patch"),
        ("vit-model", {"image_size": [8, 10]}, r"position_embeddings is \[1, 16, 20\], needed \[1, 21, 20\]"),
        ("vit-model", {"hidden_act": "selu"}, "unknown activation 'selu'"),
        ("beit-model", {"use_relative_position_bias": True}, "only one of them is read"),
        ("beit-model", {"image_size": [15, 12]}, "square images only"),
        ("beit-model", {"layer_scale_init_value": "x"}, "layer_scale_init_value = 'x'; it must be a number"),
    ],
)
def test_bad_configurations(name, changes, message, tmp_path):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    (tmp_path / "model.safetensors").write_bytes((GOLDEN / name / "model.safetensors").read_bytes())
    with pytest.raises(PosexportError, match=message):
        checkpoint_source(tmp_path, task="features", allow_pickle=False)


def test_what_checkpoints_say():
    vit = checkpoint_source(GOLDEN / "vit-forimageclassification", task=None, allow_pickle=False)
    assert vit.task == "image-classification"
    assert vit.encoding.name == "vit-interpolated"
    assert (15, 15) in vit.limits.proof_image_sizes
    both = checkpoint_source(GOLDEN / "beit-model", task=None, allow_pickle=False)
    assert both.encoding.name == "beit"
    assert both.encoding.parameters["shared"] is True
    assert any("mask token" in remark for remark in both.remarks)
