"""Windows of maps of any size, and what the definition, the built-in models and the families of Swin refuse."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.encodings.sinusoidal import Sinusoidal
from posexport.encodings.swin import Swin
from posexport.encodings.swinv2 import SwinV2
from posexport.errors import PosexportError
from posexport.models.windowed import Windowed
from posexport.models.windowed_block import WindowedConfig, cut
from posexport.run.feeds import prepare
from posexport.sources import builtin
from posexport.sources.definitions.windowed import SWIN
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
LIKE = torch.zeros(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rows", "columns", "window", "shift"),
    [
        (4, 4, 4, None),
        (5, 11, 4, 2),
        (8, 12, 4, 2),
        (7, 6, 3, 1),
        (9, 3, 3, 0),
        (2, 5, 4, 2),
        (3, 2, 1, 0),
        (9, 13, 5, 2),
    ],
)
def test_a_cut_is_padding_rolling_and_cutting(rows: int, columns: int, window: int, shift: int | None) -> None:
    got = cut(rows, columns, window, None if shift is None else torch.tensor(shift), LIKE, -9.0)
    # each place holds where it was: padded with -1, rolled, cut
    whole = [-(-side // window) * window for side in (rows, columns)]
    token = np.full(whole, rows * columns)
    token[:rows, :columns] = np.arange(rows * columns).reshape(rows, columns)
    at = np.stack([token, *np.indices(whole)])
    at = np.roll(at, (-(shift or 0), -(shift or 0)), (1, 2))
    at = at.reshape(3, whole[0] // window, window, whole[1] // window, window).swapaxes(2, 3).reshape(3, -1, window**2)
    assert np.array_equal(got.tokens_Q.numpy(), at[0].ravel())
    assert np.array_equal(got.tokens_Q[got.places_T].numpy(), np.arange(rows * columns))
    if shift is None:
        assert got.mask_N1PP is None
        return
    # two places of a window were neighbours before if they are as far apart as they were
    inside = np.stack(np.divmod(np.arange(window**2), window))
    kept = (at[1:, :, :, None] - at[1:, :, None, :] == (inside[:, :, None] - inside[:, None, :])[:, None]).all(0)
    assert got.mask_N1PP is not None
    assert np.array_equal(got.mask_N1PP[:, 0].numpy(), np.where(kept, 0.0, -9.0))
    assert kept.all() == (shift == 0)


def model(config: WindowedConfig, labels: int | None = None, seed: int = 3) -> Windowed:
    """In float64, with biases of size 1."""
    torch.manual_seed(seed)
    cls = SwinV2 if config.cosine else Swin
    encodings = [cls(window=config.window_of(stage), heads=heads) for stage, heads in enumerate(config.heads)]
    made = Windowed(config, encodings, labels).eval().double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max())


def shifts(made: Windowed, shifted: bool) -> Windowed:
    """The same model, its second blocks always shifted or never."""
    for stage in made.stages:
        stage.shifts = shifted
    return made


ONE_STAGE = {"depths": (2,), "heads": (5,), "patch": 1, "window": 4}


@pytest.mark.parametrize(
    ("size", "shifted"), [((4, 4), False), ((4, 9), False), ((9, 4), False), ((5, 5), True), ((6, 9), True)]
)
def test_maps_of_one_window_in_a_direction_are_not_shifted(size: tuple[int, int], shifted: bool) -> None:
    config = WindowedConfig(**ONE_STAGE)
    pixels = drawn(2, 3, *size)
    with torch.inference_mode():
        by_map = model(config)(pixels)[0]
        always, never = (shifts(model(config), fixed)(pixels)[0] for fixed in (True, False))
    agree(by_map, always if shifted else never, "model", np.float64)
    assert apart(always, never) > 1e-3


@pytest.mark.parametrize(
    ("made_for", "windows", "shifted"), [(16, [4, 4], True), (8, [4, 4], False), (6, [4, 3], False)]
)
def test_the_image_it_was_made_for_decides(made_for: int, windows: list[int], shifted: bool) -> None:
    """Of the last stage; whatever the image is."""
    config = WindowedConfig(made_for=made_for, norm="res-post", cosine=True)
    assert [config.window_of(stage) for stage in (0, 1)] == windows
    assert [config.shifts(stage) for stage in (0, 1)] == [True, shifted]
    assert model(config)(torch.zeros(1, 3, 5, 2, dtype=torch.float64))[0].shape == (1, 2, 40)


def test_pixels_beyond_the_last_whole_patch_are_seen() -> None:
    made = model(WindowedConfig(patch=4, window=2))
    pixels = drawn(1, 3, 23, 21)
    padded = torch.nn.functional.pad(pixels, (0, 3, 0, 1))
    with torch.inference_mode():
        agree(made(pixels)[0], made(padded)[0], "model", np.float64)
        pixels[:, :, -1, -1] += 1
        assert apart(made(pixels)[0], made(padded)[0]) > 1e-3


def test_cosines_of_padding_hold_in_half_precision() -> None:
    """Keys have no bias, so that those of padding are zeros, and half precision holds no 1e-12 to keep 0 / 0 away."""
    made = model(WindowedConfig(norm="res-post", cosine=True))
    pixels = drawn(1, 3, 21, 34)
    with torch.inference_mode():
        truth = made(pixels)[0]
        got = made.half()(pixels.half())[0].double()
    assert apart(got, truth) < 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"depths": ()}, "a number from 1 on for every stage"),
        ({"depths": (2,), "heads": (2, 5)}, "a number from 1 on for every stage"),
        ({"heads": (2, 0)}, "a number from 1 on for every stage"),
        ({"heads": (2, 3)}, "the width of stage 2 must be a multiple of its heads, got 40 and 3"),
        ({"window": 0}, "window must be a whole number from 1 on, got 0"),
        ({"patch": 0}, "patch must be a whole number from 1 on, got 0"),
        ({"mlp_ratio": 0.01}, "mlp_ratio must be at least 1 / hidden"),
        ({"made_for": 1}, "made_for must be at least 2"),
        ({"eps": 1.0}, "eps must be a finite number from 0 to below 1"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, object], message: str) -> None:
    with pytest.raises(PosexportError, match=message):
        WindowedConfig(**given)


@pytest.mark.parametrize(
    ("encodings", "message"),
    [
        ([Swin(window=4, heads=2)], "one encoding a stage, 2, got 1"),
        ([Sinusoidal(hidden=20), Sinusoidal(hidden=40)], "the encoding sinusoidal acts on embeddings"),
    ],
)
def test_encodings_that_do_not_fit(encodings: list[Encoding], message: str) -> None:
    with pytest.raises(PosexportError, match=message):
        Windowed(WindowedConfig(), encodings)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (Positions.counted(16), "swin needs the rows and columns of an image"),
        (Positions.image(3, 5), "a window of 4 by 4 or less, got 3 by 5 after 0 tokens"),
        (Positions.image(4, 4, prefix=1), "a window of 4 by 4 or less, got 4 by 4 after 1 tokens"),
    ],
)
def test_positions_that_are_no_window(positions: Positions, message: str) -> None:
    q = torch.zeros(1, 2, len(positions.slots_T), 3)
    with pytest.raises(PosexportError, match=message):
        Swin(window=4, heads=2).scores(q, q, positions, positions)


def test_pretrained_window_of_one_has_no_offsets() -> None:
    with pytest.raises(PosexportError, match=r"pretrained_window must be 0 .* or from 2 on, got 1"):
        SwinV2(window=4, heads=2, pretrained_window=1)


# built-in models


def test_names_and_settings() -> None:
    known = builtin.models()
    assert known["vision-swin"][0] is not known["vision-swinv2"][0]
    source = builtin.builtin_source(
        "vision-swin", task="image-classification", settings_given=("depths=1, 2", "heads=4,8")
    )
    assert [len(stage.blocks) for stage in source.module.stages] == [1, 2]
    assert source.outputs[0].axes == ["batch_size", 3]
    assert source.encoding.parameters == {"window": 4, "heads": 4}
    with pytest.raises(PosexportError, match=r"each of --set depths.* must be a whole number, got 'x'"):
        builtin.builtin_source("vision-swin", task=None, settings_given=("depths=2,x",))
    with pytest.raises(PosexportError, match=f"depths must be at most {builtin.LARGEST}"):
        builtin.builtin_source("vision-swin", task=None, settings_given=("depths=2,99999999999",))


@pytest.mark.all
def test_a_graph_for_any_image(tmp_path: Path) -> None:
    """Of version 2 with a last stage that is not shifted; maps smaller than a window too."""
    settings = ("hidden=10", "depths=2,1", "made_for=8", "window=4", "width=16")
    options = ConvertOptions(settings=settings, task="image-classification", threads=1)
    done = convert("vision-swinv2", tmp_path / "b", options)
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    assert min(point.image for point in done.report.points) == (1, 3)


def test_too_small_an_image_is_refused() -> None:
    source = builtin.builtin_source("vision-swin", task=None, settings_given=())
    assert source.limits.min_sizes == {"height": 13, "width": 13}
    assert source.module(torch.zeros(1, 3, 13, 13))[0].shape == (1, 16, 40)
    assert prepare({"pixel_values": np.zeros((1, 3, 13, 99))}, source.inputs, source.limits)
    with pytest.raises(PosexportError, match="pixel_values has width 12, this bundle needs at least 13"):
        prepare({"pixel_values": np.zeros((1, 3, 99, 12))}, source.inputs, source.limits)


# families


def changed(name: str, to: Path, config: dict[str, object], tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A golden checkpoint with other values in config.json and other tensors beside its own."""
    shutil.copytree(GOLDEN / name, to)
    path = to / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    if tensors:
        save_file({**load_file(to / "model.safetensors"), **tensors}, to / "model.safetensors")
    return to


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("swin-model", {"use_absolute_embeddings": True}, "sets use_absolute_embeddings"),
        ("swin-model", {"depths": "2"}, "says depths = '2'; it must be a list of whole numbers"),
        ("swin-model", {"depths": [1, 2]}, "a number from 1 on for every stage"),
        ("swin-model", {"num_heads": [1, 2, 5]}, "the width of stage 3 must be a multiple of its heads"),
        ("swin-model", {"mlp_ratio": "big"}, "says mlp_ratio = 'big'; it must be a number above 0"),
        ("swin-model", {"hidden_act": "swoosh"}, "unknown activation 'swoosh'"),
        ("swin-model", {"window_size": 4}, "relative_position_index is .* needed"),
        ("swinv2-model", {"image_size": 3}, "image_size, patch_size and windows do not fit"),
        ("swinv2-model", {"image_size": [3, 40]}, "image_size, patch_size and windows do not fit"),
        ("swinv2-model", {"pretrained_window_sizes": [0]}, "must hold a number for each of 2 stages"),
        ("swinv2-model", {"pretrained_window_sizes": [0, 1]}, "pretrained_window must be 0"),
    ],
)
def test_configurations_that_are_refused(name: str, config: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=message):
        checkpoint_source(changed(name, tmp_path / "c", config), task=None, allow_pickle=False)


def test_indices_must_be_the_formula_s(tmp_path: Path) -> None:
    name = "encoder.layers.0.blocks.0.attention.self.relative_position_index"
    index = load_file(GOLDEN / "swin-model" / "model.safetensors")[name]
    with pytest.raises(PosexportError, match=f"{name} differs from the family's formula"):
        checkpoint_source(
            changed("swin-model", tmp_path / "c", {}, {name: index.T.contiguous()}), task=None, allow_pickle=False
        )


def test_tables_of_older_checkpoints(tmp_path: Path) -> None:
    """Those before transformers 4.32 hold version 2's coordinates; here they are compared."""
    encoding = SwinV2(window=3, heads=1)
    name = "encoder.layers.1.blocks.1.attention.self.relative_coords_table"
    table = encoding.log_offsets(torch.float32)[None]
    assert checkpoint_source(changed("swinv2-model", tmp_path / "c", {}, {name: table}), task=None, allow_pickle=False)
    with pytest.raises(PosexportError, match=f"{name} differs from the family's formula"):
        checkpoint_source(
            changed("swinv2-model", tmp_path / "d", {}, {name: table * 1.1}), task=None, allow_pickle=False
        )


def test_masked_image_modelling_gives_its_features(tmp_path: Path) -> None:
    extra = {"swin.embeddings.mask_token": torch.zeros(1, 1, 10), "decoder.0.weight": torch.zeros(12, 20, 1, 1)}
    directory = changed("swin-forimageclassification", tmp_path / "c", {}, extra)
    source = checkpoint_source(directory, task="features", allow_pickle=False)
    assert any("mask token" in remark for remark in source.remarks)
    assert any("masked image modelling head" in remark for remark in source.remarks)


def test_an_encoding_is_made_for_the_first_stage() -> None:
    sizes = SWIN.sizes(WindowedConfig(hidden=30, heads=(3, 5), depths=(1, 1), window=4))
    assert sizes == {"hidden": 30, "heads": 3, "head_size": 10, "window": 4}
