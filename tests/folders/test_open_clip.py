"""open_clip's folders: what they are taken for, what is refused, and the library's values, pictures and texts."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import posexport
from posexport.base.system import extras
from posexport.cli import main
from posexport.errors import PosexportError
from posexport.folders.openers import OPEN_CLIP
from posexport.run.images.folder import read_processor
from posexport.run.images.open_clip import FILE as CONFIG
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.registry import opener_of
from tests.tolerances import agree

TEXT = {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
CLIP: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 24, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": TEXT,
}
#: bidirectional texts, read at their last token, and an image model of timm
SIGLIP: dict[str, Any] = {
    "embed_dim": 64,
    "init_logit_bias": -10,
    "custom_text": True,
    "vision_cfg": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "map", "timm_proj": "none"},
    "text_cfg": {**TEXT, "no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}},
}
RESNET: dict[str, Any] = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 32, "patch_size": None},
    "text_cfg": {**TEXT, "vocab_size": 99},
}
MODELS = {"clip": CLIP, "quick-gelu": {**CLIP, "quick_gelu": True}, "siglip": SIGLIP, "resnet": RESNET}
PREPROCESS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic", "resize_mode": "shortest"}


def written(folder: Path, model: Any = CLIP, **preprocess: Any) -> Path:
    """A folder with a configuration alone."""
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps({"model_cfg": model, "preprocess_cfg": preprocess}))
    return folder


def library() -> Any:
    return pytest.importorskip("open_clip", reason="open_clip is not installed", exc_type=ImportError)


def made(folder: Path, model: Any) -> tuple[Path, Any]:
    """A folder with weights so large that the order of tokens and of patches matters; and the library's model."""
    from safetensors.torch import save_file

    written(folder, model, **PREPROCESS)
    random = torch.Generator().manual_seed(0)
    reference = library().create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            noise = torch.randn(parameter.shape, generator=random)
            if parameter.dim() == 1:
                parameter.add_(0.2 * noise)
            elif parameter.dim() > 1:
                parameter.copy_(0.3 * noise)
    save_file({k: v.clone().contiguous() for k, v in reference.state_dict().items()}, folder / WEIGHTS)
    return folder, reference


WEIGHTS = "open_clip_model.safetensors"


def loaded(folder: Path, **options: Any) -> Any:
    return load_source(str(folder), LoadOptions(**options))


# -- without the library ----------------------------------------------------------------------------


def test_a_folder_is_open_clips_without_a_config_of_another_library(tmp_path: Path) -> None:
    assert opener_of(str(written(tmp_path))) is OPEN_CLIP
    (tmp_path / "config.json").write_text("{}")
    assert opener_of(str(tmp_path)) is not OPEN_CLIP


def test_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda name: name != "open_clip")
    monkeypatch.setattr(sys, "argv", ["posexport", "convert", str(written(tmp_path)), "-o", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "is of open_clip, which needs open_clip, which is not installed: pip install 'posexport[open_clip]'" in err


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ([], "has no table model_cfg"),
        ({"vision_cfg": {}}, "no table text_cfg"),
        ({**CLIP, "multimodal_cfg": {}}, "multimodal_cfg: it is a CoCa"),
        ({**CLIP, "text_cfg": {"hf_model_name": "a/b"}}, "hf_model_name = 'a/b'"),
        ({**CLIP, "vision_cfg": {"timm_model_name": "hf-hub:a/b"}}, "timm_model_name = 'hf-hub:a/b'"),
        ({**CLIP, "text_cfg": {"pool_type": "eos"}}, "pool_type = 'eos'"),
        ({**CLIP, "text_cfg": {"embed_cls": True}}, "embed_cls = true"),
    ],
)
def test_what_is_not_converted(tmp_path: Path, model: Any, says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        loaded(written(tmp_path, model))


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    folder = written(tmp_path)
    with pytest.raises(PosexportError, match=r"converted for zero-shot-image-classification, got --task features"):
        loaded(folder, task="features")
    with pytest.raises(PosexportError, match=r"sizes of .* are in its open_clip_config\.json"):
        loaded(folder, settings=("layers=1",))


def test_weights_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda _: True)
    with pytest.raises(PosexportError, match=f"has no weights: beside {CONFIG} it needs one of {WEIGHTS}, "):
        loaded(written(tmp_path))
    (tmp_path / "open_clip_pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(PosexportError, match="--allow-pickle"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("size", "stated", "says"),
    [
        (24, {"resize_mode": "longest"}, "resize_mode = 'longest'"),
        (24, {"interpolation": "lanczos"}, "interpolation = 'lanczos'"),
        ([24, 32], {}, "24 x 32 .* to squares alone"),
    ],
)
def test_other_transforms_are_refused(size: Any, stated: dict[str, Any], says: str) -> None:
    content = {"model_cfg": {"vision_cfg": {"image_size": size}}, "preprocess_cfg": stated}
    with pytest.raises(PosexportError, match=says):
        read_processor({CONFIG: json.dumps(content).encode()}, "folder")


def test_the_size_of_pictures_is_the_models() -> None:
    content = {"model_cfg": {"vision_cfg": {"image_size": 24}}, "preprocess_cfg": {"size": 5, "mean": 0.5}}
    processor = read_processor({CONFIG: json.dumps(content).encode()}, "folder")
    assert processor is not None
    assert processor.sizes("size") == {"shortest_edge": 24}
    assert processor.image_mean == (0.5, 0.5, 0.5)


# -- with the library -------------------------------------------------------------------------------


@pytest.mark.all
@pytest.mark.filterwarnings("default")  # the library's
def test_every_tensor_is_used(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, _ = made(tmp_path, CLIP)
    whole = load_file(folder / WEIGHTS)
    changes = {
        "weights lack visual.proj, which": {k: v for k, v in whole.items() if k != "visual.proj"},
        "does not use stranger of the weights": {**whole, "stranger": torch.ones(1)},
        r"visual.proj is \[3\] in the weights and \[32, 24\]": {**whole, "visual.proj": torch.ones(3)},
    }
    for says, tensors in changes.items():
        save_file(tensors, folder / WEIGHTS)
        with pytest.raises(PosexportError, match=says):
            loaded(folder)
    # a scale may be a list, and a pickle may hold all of it
    (folder / WEIGHTS).unlink()
    torch.save({**whole, "logit_scale": whole["logit_scale"][None]}, folder / "open_clip_pytorch_model.bin")
    source = loaded(folder, allow_pickle=True)
    (scale,) = (value for name, value in source.module.named_parameters() if name.endswith("logit_scale"))
    assert torch.equal(scale, whole["logit_scale"])


@pytest.mark.all
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", MODELS)
def test_values_pictures_and_texts_are_the_librarys(tmp_path: Path, kind: str) -> None:
    folder, reference = made(tmp_path / "folder", MODELS[kind])
    posexport.convert(str(folder), tmp_path / "bundle")
    session = posexport.load(tmp_path / "bundle")
    ids, pixels = session.inputs
    assert [ids.axes[1], ids.name, pixels.name] == [TEXT["context_length"], "input_ids", "pixel_values"]
    # at other numbers of texts and of images than the graph was traced at
    random = torch.Generator().manual_seed(1)
    for texts, images in ((1, 1), (4, 6), (9, 2)):
        ids_NT = torch.randint(0, MODELS[kind]["text_cfg"]["vocab_size"], (texts, ids.axes[1]), generator=random)
        pixels_IHW = torch.randn(images, *pixels.axes[1:], generator=random)
        with torch.no_grad():
            logits_IN, logits_NI = reference.get_logits(pixels_IHW, ids_NT)
            texts_NC = reference.encode_text(ids_NT, normalize=True)
            images_IC = reference.encode_image(pixels_IHW, normalize=True)
            flipped_NC = reference.encode_text(ids_NT.flip(1), normalize=True)
        values = session.run({"input_ids": ids_NT.numpy(), "pixel_values": pixels_IHW.numpy()})
        wanted = {
            "logits_per_image": logits_IN,
            "logits_per_text": logits_NI,
            "text_embeds": texts_NC,
            "image_embeds": images_IC,
        }
        assert list(values) == list(wanted)
        for name, value in wanted.items():
            agree(values[name], value.numpy(), "another library", np.float32)
        assert (flipped_NC - texts_NC).abs().max() > 0.05, "the order of tokens changes nothing"


@pytest.mark.all
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_labels_of_pictures_are_the_librarys(tmp_path: Path, kind: str) -> None:
    from PIL import Image

    folder, reference = made(tmp_path / "folder", MODELS[kind])
    posexport.convert(str(folder), tmp_path / "bundle")
    prepare = library().create_model_and_transforms(f"local-dir:{folder}")[2]
    tokenize = library().get_tokenizer(f"local-dir:{folder}")
    random = np.random.default_rng(0)
    picture = Image.fromarray(random.integers(0, 256, (200, 300, 3), dtype=np.uint8))
    labels = ["cat", "Dogs & CATS!", "far longer than a text may be " * 4]
    with torch.no_grad():
        ids_NT = tokenize([f"This is a photo of {label}." for label in labels])
        (logits_N,) = reference.get_logits(prepare(picture)[None], ids_NT)[0]
        scores_N = logits_N.softmax(0) if reference.logit_bias is None else logits_N.sigmoid()
    answers = posexport.pipeline("zero-shot-image-classification", tmp_path / "bundle")(
        picture, candidate_labels=labels
    )
    scores = {answer["label"]: answer["score"] for answer in answers}
    agree([scores[label] for label in labels], scores_N.numpy(), "another library", np.float32)


@pytest.mark.all
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "stated",
    [
        {"interpolation": "bilinear", "mean": [0.5] * 3},
        {"resize_mode": "squash"},
        {"interpolation": "random", "std": [0.3] * 3},
    ],
)
def test_pictures_are_prepared_as_by_the_library(stated: dict[str, Any]) -> None:
    library()
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image

    content = {"model_cfg": {"vision_cfg": {"image_size": 37}}, "preprocess_cfg": stated}
    processor = read_processor({CONFIG: json.dumps(content).encode()}, "folder")
    assert processor is not None
    transform = image_transform_v2(PreprocessCfg(**stated, size=37), is_train=False)
    random = np.random.default_rng(0)
    for edges in ((61, 83), (90, 55), (20, 31)):
        picture = Image.fromarray(random.integers(0, 256, (*edges, 3), dtype=np.uint8))
        agree(processor([picture])["pixel_values"][0], transform(picture).numpy(), "operator", np.float32)


@pytest.mark.all
@pytest.mark.filterwarnings("default")
def test_texts_are_tokenized_as_by_the_library(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from posexport.checkpoints.directory import Directory
    from posexport.folders.open_clip_texts import tokenizer_files

    open_clip = library()
    named, _ = tokenizer_files(open_clip, Directory(tmp_path), {}, {})
    tokenizer = Tokenizer.from_file(str(named["tokenizer.json"]))
    texts = [
        "A photo of a  cat.\n",
        "hello's WORLD 1234 don't!!! we're",
        "na\u00efve caf\u00e9 \u2014 \u65e5\u672c\u8a9e \U0001f600 \u00bd x\u00b2 e\u0301 \u03a3\u0391\u03a3 \u0130",
        "<end_of_text> a <start_of_text>",
        "\u3000wide\u00a0space",
    ]
    for text, wanted in zip(texts, open_clip.SimpleTokenizer()(texts), strict=True):
        ids = tokenizer.encode(text).ids
        assert [*ids, *[0] * (77 - len(ids))] == wanted.tolist(), text


@pytest.mark.all
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("clean", ["canonicalize", "lower", "whitespace"])
def test_texts_are_cleaned_as_by_the_library(tmp_path: Path, clean: str) -> None:
    from tokenizers import Tokenizer, models

    from posexport.checkpoints.directory import Directory
    from posexport.folders.open_clip_texts import tokenizer_files

    open_clip = library()
    from open_clip.tokenizer import get_clean_fn

    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"x": 0}, unk_token="x")).save(str(path))
    text = {"hf_tokenizer_name": "a/b", "tokenizer_kwargs": {"clean": clean}}
    named, _ = tokenizer_files(open_clip, Directory(tmp_path), {"tokenizer.json": path}, text)
    tokenizer = Tokenizer.from_file(str(named["tokenizer.json"]))
    for sentence in (" A_photo\n of   [a] Cat's tail\\! ", "{x} e\u0301 \u03a3\u0391\u03a3, 1-2"):
        assert tokenizer.normalizer.normalize_str(sentence) == get_clean_fn(clean)(sentence)


@pytest.mark.parametrize("text", [{"tokenizer_kwargs": {"strip_sep_token": True}}, {"tokenizer_mode": "clips"}])
def test_other_tokenizers_leave_ids_alone(tmp_path: Path, text: dict[str, Any]) -> None:
    from posexport.checkpoints.directory import Directory
    from posexport.folders.open_clip_texts import tokenizer_files

    files, remarks = tokenizer_files(None, Directory(tmp_path), {}, {"hf_tokenizer_name": "a/b", **text})
    assert files == {}
    assert "takes ids and no texts" in remarks[0]
