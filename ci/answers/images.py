"""Pictures: what image processors make of files, PIL images and arrays, by transformers' PIL backend."""

import hashlib
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ci.answers.case import Case
from posexport.errors import PosexportError
from posexport.run.images.folder import FILES, read_processor

#: pictures of odd sizes, as `draw` makes them; kept beside the golden answers, because encoders of JPEG differ
PICTURES = Path(__file__).parents[2] / "tests" / "answers" / "images"
GOLDEN = PICTURES / "golden.json"
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def of(kind: str, /, **settings: Any) -> dict[str, Any]:
    return {"image_processor_type": kind, **settings}


def sides(height: int, width: int) -> dict[str, int]:
    return {"height": height, "width": width}


def shortest(edge: int) -> dict[str, int]:
    return {"shortest_edge": edge}


#: preprocessor_config.json by what it is for; sizes are small and differ from each other
SETTINGS: dict[str, dict[str, Any]] = {
    "vit": of("ViTImageProcessor", size=sides(24, 20)),
    "vit-old": {
        "feature_extractor_type": "ViTFeatureExtractor",
        "size": 18,
        "resample": 3,
        "image_mean": [0.4, 0.5, 0.6],
    },
    "vit-fast": of("ViTImageProcessorFast", size=shortest(17), resample=1),
    "vit-longest": of("ViTImageProcessor", size={"shortest_edge": 19, "longest_edge": 25}),
    "vit-max": of("ViTImageProcessor", size={"max_height": 21, "max_width": 33}, resample=0),
    "vit-raw": of("ViTImageProcessor", do_resize=False, do_normalize=False),
    "vit-unscaled": of(
        "ViTImageProcessor", size=sides(11, 13), do_rescale=False, image_mean=120.5, image_std=60.25, resample=5
    ),
    "vit-padded": of("ViTImageProcessor", size=shortest(16), do_pad=True, pad_size=sides(40, 44)),
    "vit-factor": of("ViTImageProcessor", size=[15, 14], rescale_factor=0.00784313725490196, resample=4),
    "beit": of("BeitImageProcessor", size=26, do_center_crop=True, crop_size=22, do_reduce_labels=True),
    "deit": of("DeiTImageProcessor", size=sides(32, 28), crop_size=sides(23, 25)),
    "clip": of("CLIPImageProcessor", size=shortest(22), crop_size=sides(19, 17)),
    "clip-old": {
        "feature_extractor_type": "CLIPFeatureExtractor",
        "size": 21,
        "crop_size": 21,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
    },
    "clip-small": of("CLIPImageProcessor", size=shortest(12), crop_size=sides(31, 26)),
    "clip-no-resize": of("CLIPImageProcessor", do_resize=False, crop_size=sides(40, 41)),
    "chinese-clip": of("ChineseCLIPImageProcessor", size=sides(18, 18), crop_size=18),
    "siglip": of("SiglipImageProcessor", size=sides(20, 20), resample=2),
    "bit": of("BitImageProcessor", size=shortest(25), crop_size=sides(22, 22)),
    "blip": of("BlipImageProcessor", size=sides(27, 23)),
    "convnext": of("ConvNextImageProcessor", size=shortest(28)),
    "convnext-pct": of("ConvNextImageProcessor", size=30, crop_pct=0.7),
    "pvt": of("PvtImageProcessor", size=sides(22, 30)),
    "segformer": of("SegformerImageProcessor", size=sides(24, 26), do_reduce_labels=True),
    "efficientnet": of("EfficientNetImageProcessor", size=sides(21, 23), rescale_offset=True),
    "efficientnet-crop": of(
        "EfficientNetImageProcessor",
        size=sides(30, 29),
        do_center_crop=True,
        crop_size=sides(24, 20),
        include_top=False,
    ),
    "levit": of("LevitImageProcessor", size=shortest(21), crop_size=sides(23, 22)),
    "poolformer": of("PoolFormerImageProcessor", size=shortest(20), crop_size=sides(20, 20)),
    "poolformer-square": of("PoolFormerImageProcessor", size=20, crop_size=18, crop_pct=0.8),
    "llava": of("LlavaImageProcessor", size=shortest(20), crop_size=sides(20, 20), do_pad=True),
    "llava-next": of(
        "LlavaNextImageProcessor",
        size=shortest(12),
        crop_size=sides(12, 12),
        image_grid_pinpoints=[[24, 24], [12, 48], [36, 12], [24, 36]],
    ),
    "llava-onevision": of(
        "LlavaOnevisionImageProcessor",
        size=sides(14, 14),
        image_grid_pinpoints=[[14, 14], [28, 14], [28, 28], [14, 70], [42, 28]],
        resample=2,
    ),
    "idefics3": of("Idefics3ImageProcessor", size={"longest_edge": 50}, max_image_size={"longest_edge": 16}),
    "smolvlm": of(
        "SmolVLMImageProcessorFast", size={"longest_edge": 15}, max_image_size={"longest_edge": 15}, resample=3
    ),
    "idefics3-whole": of(
        "Idefics3ImageProcessor",
        size={"longest_edge": 60},
        max_image_size={"longest_edge": 18},
        do_image_splitting=False,
    ),
    "gemma3": of("Gemma3ImageProcessorFast", size=sides(21, 19)),
    "qwen2-vl": of("Qwen2VLImageProcessor", min_pixels=900, max_pixels=1500, patch_size=6),
    "qwen2-vl-size": of(
        "Qwen2VLImageProcessorFast",
        size={"shortest_edge": 3000, "longest_edge": 6000},
        patch_size=5,
        temporal_patch_size=3,
    ),
}


def draw(into: Path) -> None:
    """Pictures of every kind of file: colours, grey, transparent, palettes, turned by EXIF, CMYK."""
    random = np.random.default_rng(11)

    def noise(height: int, width: int, channels: int) -> Any:
        """Waves and noise: neither flat nor so rough that every filter gives the same grey."""
        rows, columns = np.mgrid[:height, :width]
        waves = [np.sin(rows / (3 + c)) * np.cos(columns / (5 - c)) * 90 + 128 for c in range(channels)]
        return np.clip(np.stack(waves, -1) + random.normal(0, 25, (height, width, channels)), 0, 255).astype(np.uint8)

    into.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(37, 53, 3)).save(into / "colour.png")
    Image.fromarray(noise(53, 37, 1)[..., 0]).save(into / "grey.png")
    Image.fromarray(noise(20, 31, 4)).save(into / "transparent.png")
    Image.fromarray(noise(33, 22, 2)).save(into / "grey-transparent.png")
    palette = Image.fromarray(noise(41, 29, 3)).quantize(16)
    palette.save(into / "palette.png", transparency=3)
    Image.fromarray(noise(30, 48, 3)).save(into / "turned.jpg", quality=90, exif=_turned())
    Image.fromarray(noise(26, 26, 4)).convert("CMYK").save(into / "cmyk.jpg", quality=90)
    Image.fromarray(noise(5, 61, 3)).save(into / "flat.png")


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    return exif


def paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".png", ".jpg"))


def _array(path: Path) -> Any:
    return np.array(Image.open(path).convert("RGB"))


#: what is given: the picture of a file in other forms
FORMS: dict[str, Callable[[Path], Any]] = {
    "file": str,
    "PIL": lambda path: Image.open(path),
    "array HWC": _array,
    "array CHW from 0 to 1": lambda path: (_array(path).transpose(2, 0, 1) / 255.0).astype(np.float32),
    "array RGBA": lambda path: np.array(Image.open(path).convert("RGBA")),
}


#: numbers about pixels that only one of the two returns
_ASIDE = {"num_crops", "pixel_attention_mask", "batch_num_images", "tile_grids"}


def answer(call: Callable[[Any], Any], given: Any) -> dict[str, Any]:
    """What is kept of the arrays of one call: shapes, hashes and a few elements; or that it failed."""
    try:
        arrays = dict(call(given))
    except (PosexportError, ValueError, TypeError, KeyError, AttributeError, IndexError) as err:
        return {"refused": isinstance(err, PosexportError) or type(err).__name__}
    return {name: kept(np.asarray(array)) for name, array in sorted(arrays.items()) if name not in _ASIDE}


def kept(array: Any) -> dict[str, Any]:
    if array.dtype.kind == "f" or array.dtype == np.uint8:
        array = array.astype(np.float32)
    return {
        "shape": list(array.shape),
        "sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12],
        "middle": round(float(array.reshape(-1)[array.size // 2]), 5),
    }


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Equal bit by bit, or both refused."""
    if "refused" in ours or "refused" in theirs:
        return "refused" in theirs and ours.get("refused") is True
    return ours == theirs


def library(folder: Path) -> Callable[[Any], Any]:
    """transformers' processor of ``folder``, by Pillow and NumPy; files are opened as its pipelines open them."""
    import transformers
    from transformers.image_utils import load_image

    transformers.logging.set_verbosity_error()  # for each array whose channels could be two axes
    by_pillow = {"use_fast": False} if transformers.__version__.startswith("4") else {"backend": "pil"}
    processor = transformers.AutoImageProcessor.from_pretrained(folder, **by_pillow)

    def call(given: Any) -> Any:
        return processor(load_image(given) if isinstance(given, str) else given, return_tensors="np")

    return call


def written(settings: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def ours(folder: Path) -> Callable[[Any], Any]:
    contents = {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}
    processor = read_processor(contents, str(folder))
    assert processor is not None
    return processor


def dinov3(into: Path, work: Path) -> None:
    """``pixel_values`` of DINOv3's processor, which transformers has with torchvision alone."""
    from transformers import AutoImageProcessor
    from transformers.image_utils import load_image

    rows = []
    for settings in (
        {"size": {"height": 7, "width": 6}},
        {"size": 5, "resample": 3, "do_center_crop": True, "crop_size": 4},
    ):
        settings = {"image_processor_type": "DINOv3ViTImageProcessorFast", **settings}
        processor = AutoImageProcessor.from_pretrained(written(settings, work / "dinov3"))
        for name in ("colour.png", "turned.jpg"):
            pixels = processor(load_image(str(PICTURES / name)), return_tensors="np")["pixel_values"]
            rows.append(
                {"settings": settings, "picture": name, "pixel_values": np.round(np.asarray(pixels), 6).tolist()}
            )
    (into / "dinov3.json").write_text(json.dumps(rows, separators=(",", ":")) + "\n")


#: why transformers 4 answers otherwise, by the settings or the form; transformers 5 is followed
OLDER = {
    "vit-fast": "resizes ViT's pictures to height and width alone",
    "vit-longest": "resizes ViT's pictures to height and width alone",
    "vit-max": "resizes ViT's pictures to height and width alone",
    "vit-padded": "resizes ViT's pictures to height and width alone, and ignores do_pad",
    "convnext": "has another default of resample; a remark says so",
    "convnext-pct": "has another default of resample; a remark says so",
    "pvt": "has another default of resample; a remark says so",
    "efficientnet": "has another default of resample; a remark says so",
    "efficientnet-crop": "has another default of resample; a remark says so",
    "qwen2-vl-size": "does not read size where min_pixels is missing",
    "file": "drops the alpha channel where transformers 5 lays pictures on white",
    "PIL": "drops the alpha channel where transformers 5 lays pictures on white, or refuses modes that it takes",
    "array RGBA": "refuses arrays with an alpha channel",
}


def cases(work: Path) -> Iterator[Case]:
    import transformers

    for name, settings in SETTINGS.items():
        folder = written(settings, work / name)
        here, there = ours(folder), library(folder)
        for form, given in FORMS.items():
            both = {path.name: (answer(here, given(path)), answer(there, given(path))) for path in paths(PICTURES)}
            wrong = {path: pair for path, pair in both.items() if not same(*pair)}
            shown = wrong or both
            yield Case(
                part="pictures",
                asked=f"{name}, {form}",
                library=f"transformers {transformers.__version__}",
                ours={path: pair[0] for path, pair in shown.items()},
                theirs={path: pair[1] for path, pair in shown.items()},
                equal=not wrong,
                remark=_remark(name, form, transformers.__version__) if wrong else "",
            )


def _remark(name: str, form: str, installed: str) -> str:
    reason = OLDER.get(name, OLDER.get(form)) if installed.startswith("4.") else None
    return f"transformers {installed} {reason}" if reason else ""


def golden(into: Path, work: Path) -> None:
    """The answers of the installed transformers, and the pictures, as tests/answers/images keeps them."""
    import transformers

    if not into.exists() or not paths(into):
        draw(into)
    answers: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        there = library(written(settings, work / name))
        forms = {form: {path.name: answer(there, given(path)) for path in paths(into)} for form, given in FORMS.items()}
        answers[name] = {"settings": settings, "answers": forms}
    record = {"library": f"transformers {transformers.__version__}, PIL backend", "processors": answers}
    (into / GOLDEN.name).write_text(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        if find_spec("torchvision"):
            dinov3(PICTURES, Path(temporary))
        else:
            golden(PICTURES, Path(temporary))
