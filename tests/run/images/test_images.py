"""Pictures as arrays: equal to transformers' PIL backend bit by bit, and one sentence for what is no picture."""

import io
import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import posexport
from ci.answers import images as made
from posexport.errors import PosexportError
from posexport.run import preparation
from posexport.run.bundle.manifest import Manifest
from posexport.run.images import open_processor
from posexport.run.images.registry import BY_MODEL_TYPE, PROCESSORS
from tests.tolerances import agree

GOLDEN = json.loads(made.GOLDEN.read_text())["processors"]
VIT = {"image_processor_type": "ViTImageProcessor", "size": {"height": 6, "width": 5}}


def opened(folder: Path, settings: dict[str, Any] | str, name: str = "preprocessor_config.json", **others: Any) -> Any:
    """The processor of a bundle with one file of settings, and further files of JSON."""
    folder.mkdir(exist_ok=True)
    contents = {name: settings, **{f"{stem}.json": content for stem, content in others.items()}}
    for file, content in contents.items():
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return open_processor(folder, cast(Manifest, SimpleNamespace(files=dict.fromkeys(contents), inputs=[])))


@pytest.mark.parametrize("name", GOLDEN)
def test_equal_to_the_library(name: str, tmp_path: Path) -> None:
    """Also: what the library refuses is refused in a sentence."""
    processor = partial(opened(tmp_path, GOLDEN[name]["settings"]), all_arrays=True)
    for form, given in made.FORMS.items():
        for picture, theirs in GOLDEN[name]["answers"][form].items():
            ours = made.answer(processor, given(made.PICTURES / picture))
            assert made.same(ours, theirs), (form, picture, ours, theirs)


def test_near_to_torchvision(tmp_path: Path) -> None:
    """DINOv3 resizes real numbers, which transformers does with torchvision alone."""
    for number, row in enumerate(json.loads((made.PICTURES / "dinov3.json").read_text())):
        ours = opened(tmp_path / str(number), row["settings"])(made.PICTURES / row["picture"])["pixel_values"]
        assert ours.dtype == np.float32
        agree(ours, row["pixel_values"], "another library", np.float32)


def test_the_golden_answers_differ_from_each_other() -> None:
    """A processor that ignored a setting would give another one's answers."""
    hashes = [entry["answers"]["file"]["colour.png"]["pixel_values"]["sha256"] for entry in GOLDEN.values()]
    assert len(set(hashes)) == len(GOLDEN)


def test_forms_of_one_picture(tmp_path: Path) -> None:
    processor = opened(tmp_path, VIT)
    path = made.PICTURES / "turned.jpg"
    expected = processor(path)["pixel_values"]
    assert expected.shape == (1, 3, 6, 5)
    assert expected.dtype == np.float32
    data = path.read_bytes()
    for form in (str(path), data, bytearray(data), [[path]], (path,)):
        assert np.array_equal(processor(form)["pixel_values"], expected)
    array = np.array(Image.open(path))
    assert not np.array_equal(processor(array)["pixel_values"], expected)  # as transformers: arrays are not turned
    both = processor([path, array])["pixel_values"]
    assert np.array_equal(both, np.concatenate([expected, processor(array)["pixel_values"]]))
    assert np.array_equal(processor(np.stack([array, array]))["pixel_values"][1], both[1])
    first = np.moveaxis(array, -1, 0)[None]
    assert np.array_equal(processor(first)["pixel_values"][0], both[1])


def test_a_grey_array(tmp_path: Path) -> None:
    grey = np.arange(99, dtype=np.uint8).reshape(9, 11)
    processor = opened(tmp_path, {**VIT, "do_convert_rgb": True})
    assert np.array_equal(processor(grey)["pixel_values"], processor(grey[..., None])["pixel_values"])
    with pytest.raises(PosexportError, match=r"has 1 channel and image_mean 3; .*convert\(\"RGB\"\)"):
        processor(grey, do_convert_rgb=False)


def test_settings_of_a_call(tmp_path: Path) -> None:
    processor = opened(tmp_path, VIT)
    picture = made.PICTURES / "colour.png"
    assert processor(picture, size={"height": 3, "width": 4})["pixel_values"].shape == (1, 3, 3, 4)
    assert processor(picture, do_resize=False)["pixel_values"].shape == (1, 3, 37, 53)
    twice = np.zeros((3, 4, 3), np.uint8)
    assert processor(twice, do_resize=False, input_data_format="channels_last")["pixel_values"].shape == (1, 3, 3, 4)
    with pytest.raises(PosexportError, match="colour is no setting of ViTImageProcessor; it has do_convert_rgb, "):
        processor(picture, colour=3)
    with pytest.raises(PosexportError, match="in the settings given is wrong: Expected `bool"):
        processor(picture, do_resize="yes")


def test_large_pictures_of_convnext_are_whole(tmp_path: Path) -> None:
    """From an edge of 384 on, pictures are stretched; below it their middle is cut out."""
    convnext = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}}
    stretched = opened(tmp_path / "vit", {**VIT, "size": 384, "resample": 3})(made.PICTURES / "colour.png")
    whole = opened(tmp_path / "convnext", convnext)
    assert np.array_equal(whole(made.PICTURES / "colour.png")["pixel_values"], stretched["pixel_values"])
    cut = whole(made.PICTURES / "colour.png", size=383)["pixel_values"]
    assert cut.shape == (1, 3, 383, 383)
    assert np.abs(cut - stretched["pixel_values"][..., :383, :383]).max() > 0.5


def test_where_settings_stand(tmp_path: Path) -> None:
    """processor_config.json goes first; without a class the model type decides; "Pil" and "Fast" are backends."""
    picture = made.PICTURES / "colour.png"
    nested = {"image_processor": {"image_processor_type": "CLIPImageProcessorPil", "crop_size": 7}}
    processor = opened(tmp_path / "nested", nested, "processor_config.json", preprocessor_config=VIT)
    assert processor(picture)["pixel_values"].shape == (1, 3, 7, 7)
    processor = opened(tmp_path / "typed", {"size": 9}, config={"model_type": "swinv2"})
    assert processor(picture)["pixel_values"].shape == (1, 3, 9, 9)
    with pytest.raises(PosexportError, match="does not say how pictures are prepared"):
        opened(tmp_path / "sound", {"feature_extractor_type": "WhisperFeatureExtractor"})
    with pytest.raises(
        PosexportError, match="names no image_processor_type, and none is known for model_type 'vitmatte'"
    ):
        opened(tmp_path / "unknown", {"size": 9}, config={"model_type": "vitmatte"})
    assert set(BY_MODEL_TYPE.values()) <= set(PROCESSORS)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds no JSON object"),
        (
            {"image_processor_type": "VitMatteImageProcessor"},
            "names VitMatteImageProcessor, which prepares pictures in a way",
        ),
        ({**VIT, "size": {"shortest_edge": 3, "height": 4}}, "size has shortest_edge, height; give one of"),
        ({**VIT, "size": 0}, "size.height is 0; it must be at least 1"),
        ({**VIT, "size": [4]}, r"size is \[4\]; give \[height, width\]"),
        ({**VIT, "size": "large"}, "preprocessor_config.json is wrong: .*str.*size"),
        ({**VIT, "do_center_crop": True}, "do_center_crop is true and crop_size is none"),
        ({**VIT, "resample": 9}, "resample is 9; Pillow's filters are 0 to 5"),
        ({**VIT, "image_std": [1.0, 0.0, 1.0]}, "image_std holds 0"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": [8, 8]}, "ConvNextImageProcessor resizes by short"),
        ({"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0}, "crop_pct is 0"),
        ({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}, "do_pan_and_scan is true"),
        ({"image_processor_type": "Qwen2VLImageProcessor", "merge_size": 0}, "merge_size is 0; it must be at least 1"),
    ],
)
def test_folders_that_contradict_themselves(settings: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=sentence):
        opened(tmp_path, settings)


def test_what_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = opened(tmp_path, VIT)
    (tmp_path / "text.png").write_text("no picture")
    complete = (made.PICTURES / "colour.png").read_bytes()
    cases: list[tuple[Any, str]] = [
        (tmp_path / "text.png", r"text.png is no picture that Pillow can read"),
        (b"", "the picture of 0 bytes is no picture"),
        (complete[:3000], "the picture of 3,000 bytes cannot be read as a picture .*is the file complete"),
        (tmp_path / "absent.png", "absent.png does not exist"),
        (tmp_path, "is a folder; give its files one by one"),
        ("https://example.org/cat.png", "is an address; download the picture"),
        ("data:image/png;base64,!", "in a data: address"),
        ("a\0b", "is no path|does not exist"),
        ([], "no picture was given"),
        (None, "a picture is a path, the bytes of a file, a PIL.Image or an array; got NoneType"),
        ([1, 2], "got int"),
        (np.zeros(7), r"a picture has the shape \[7\]"),
        (np.zeros((1, 2, 3, 4, 5)), r"a picture has the shape \[1, 2, 3, 4, 5\]"),
        (np.zeros((5, 6, 7), np.uint8), "where neither the first nor the last axis has 1, 3 or 4 elements"),
        (np.zeros((0, 6, 3), np.uint8), "each axis needs at least 1 element"),
        (np.full((5, 6, 3), "x"), "the picture x does not exist"),
        (np.full((5, 6, 3), np.nan), "a picture holds NaN or infinity"),
        (np.full((5, 6, 3), 300.0), "values from 300.0 to 300.0, which cannot be resized as 8 bits"),
        (np.full((5, 6, 3), -0.5), "cannot be resized as 8 bits"),
    ]
    for given, sentence in cases:
        with pytest.raises(PosexportError, match=sentence):
            processor(given)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(PosexportError, match="has more pixels than Pillow decodes"):
        processor(complete)


def test_pictures_of_different_sizes(tmp_path: Path) -> None:
    processor = opened(tmp_path, {**VIT, "size": {"shortest_edge": 8}})
    pair = [np.zeros((20, 30, 3), np.uint8), np.zeros((30, 20, 3), np.uint8)]
    with pytest.raises(PosexportError, match=r"different shapes once they are prepared \(3x8x12 and 3x12x8\)"):
        processor(pair)
    assert processor(pair, do_pad=True)["pixel_values"].shape == (2, 3, 12, 12)
    with pytest.raises(PosexportError, match=r"of 8 x 12 .* cannot be padded to 9 x 9"):
        processor(pair, do_pad=True, pad_size=9)
    for step in ({"size": 10**6}, {"size": 8, "do_center_crop": True, "crop_size": 10**6}):
        with pytest.raises(PosexportError, match=r"would get 1000000 x 1000000 pixels .* correct the size"):
            processor(pair[0], **step)
    with pytest.raises(PosexportError, match="would be resized to 4 x 0"):
        processor(np.zeros((1, 900, 3), np.uint8), size={"shortest_edge": 2, "longest_edge": 4})


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.base.system.extras.is_installed", lambda module: module != "PIL")
    with pytest.raises(PosexportError, match=r"preparing pictures needs Pillow, .*pip install 'posexport\[images\]'"):
        opened(tmp_path, VIT)


def test_remarks(tmp_path: Path) -> None:
    """What a folder asks for and does not get is named; what has no effect is not."""
    file = tmp_path / "preprocessor_config.json"

    def said(settings: dict[str, Any]) -> list[str]:
        file.write_text(json.dumps(settings))
        return preparation.remarks({file.name: file})

    usual = {"image_processor_type": "BeitImageProcessor", "size": 8, "do_center_crop": False}
    silent = {"processor_class": "X", "do_reduce_labels": True, "do_pad": False, "data_format": "channels_first"}
    assert said({**usual, **silent}) == []
    assert said({"feature_extractor_type": "ViTFeatureExtractor", "size": 8}) == []
    assert preparation.remarks({}) == []
    assert said({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000}) == []
    beit = {
        **usual,
        "do_pad": True,
        "brightness": 2,
        "data_format": "channels_last",
    }
    assert said(beit) == [
        "preprocessor_config.json says do_pad = true, which BeitImageProcessor does not read",
        "preprocessor_config.json says brightness = 2, which BeitImageProcessor does not read",
        "preprocessor_config.json says data_format = 'channels_last'; the graph takes channels_first, and pictures are "
        "given so",
    ]
    (sentence,) = said({"image_processor_type": "PvtImageProcessor", "size": 8})
    assert sentence == (
        "preprocessor_config.json does not say resample; transformers 4.57 takes 2 and 5.24, which is followed, 3"
    )
    (sentence,) = said({"image_processor_type": "VitMatteImageProcessor"})
    assert sentence.startswith(
        "pictures cannot be prepared by this bundle, it runs arrays: preprocessor_config.json names VitMatte"
    )
    (sentence,) = said({**VIT, "auto_map": {"AutoImageProcessor": "code.Mine"}})
    assert "which is not run; pictures are prepared as by ViTImageProcessor" in sentence


@pytest.mark.all
def test_a_session_prepares_what_it_runs(tmp_path: Path) -> None:
    source = tmp_path / "vit"
    shutil.copytree(Path(__file__).parents[2] / "golden" / "vit-forimageclassification", source)
    size = json.loads((source / "config.json").read_text())["image_size"]
    settings = {"image_processor_type": "ViTImageProcessor", "size": size, "strength": 3}
    (source / "preprocessor_config.json").write_text(json.dumps(settings))
    done = posexport.convert(source, tmp_path / "bundle", verify=False)
    assert "preprocessor_config.json says strength = 3, which ViTImageProcessor does not read" in done.remarks
    session = posexport.load(tmp_path / "bundle")
    pictures = [made.PICTURES / "colour.png", Image.open(made.PICTURES / "turned.jpg")]
    buffer = io.BytesIO()
    pictures[1].save(buffer, "PNG")
    logits = session.run(session.prepare(images=pictures))["logits"]
    assert logits.shape[0] == 2
    assert np.array_equal(session.run(session.prepare(images=buffer.getvalue()))["logits"].shape, (1, logits.shape[1]))
