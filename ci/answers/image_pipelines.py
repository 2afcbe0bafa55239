"""Pipelines of pictures: what ``transformers.pipeline`` answers on tiny checkpoints, and `posexport.pipeline`.

``python -m ci.answers.image_pipelines`` writes the library's answers, which tests compare with.
"""

import hashlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ci.answers.case import Case
from ci.answers.images import PICTURES
from ci.answers.pipelines import equal, plain
from ci.answers.seeded import SHAPES, WEIGHTS, refill, store

GOLDEN = PICTURES / "pipelines"
COLOUR, TURNED, GREY = (PICTURES / name for name in ("colour.png", "turned.jpg", "grey.png"))
WORDS = ["This", "is", "a", "photo", "of", "big", "red", "house", "cat", "dog", "animals", "."]
LABELS = ["cat", "a big red house", "animals", "w7"]
_SMALL = {"num_hidden_layers": 2, "intermediate_size": 29}


def _saved(model: Any, processor: Any, directory: Path) -> None:
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    refill(directory)


def _vit(directory: Path) -> None:
    import transformers as tf

    names = {0: "cat", 1: "dog", 2: "house", 3: "tree", 4: "boat", 5: "moon"}
    config = tf.ViTConfig(hidden_size=20, num_attention_heads=5, image_size=20, patch_size=5, id2label=names, **_SMALL)
    _saved(tf.ViTForImageClassification(config), tf.ViTImageProcessor(size={"height": 20, "width": 20}), directory)


def _swin(directory: Path) -> None:
    import transformers as tf

    names = {0: "rain", 1: "snow", 2: "fog"}
    config = tf.SwinConfig(
        image_size=16,
        patch_size=2,
        embed_dim=12,
        depths=[1, 1],
        num_heads=[2, 3],
        window_size=4,
        id2label=names,
        problem_type="multi_label_classification",
    )
    processor = tf.ViTImageProcessor(size={"height": 16, "width": 16}, resample=3, image_mean=[0.4, 0.5, 0.6])
    _saved(tf.SwinForImageClassification(config), processor, directory)


def _beit(directory: Path) -> None:
    import transformers as tf

    config = tf.BeitConfig(hidden_size=20, num_attention_heads=4, image_size=18, patch_size=6, num_labels=1, **_SMALL)
    processor = tf.BeitImageProcessor(size={"height": 18, "width": 18}, do_center_crop=False)
    _saved(tf.BeitForImageClassification(config), processor, directory)


def _vit_features(directory: Path) -> None:
    import transformers as tf

    config = tf.ViTConfig(hidden_size=20, num_attention_heads=5, image_size=20, patch_size=5, **_SMALL)
    _saved(tf.ViTModel(config), tf.ViTImageProcessor(size={"height": 20, "width": 20}), directory)


def _dinov2_features(directory: Path) -> None:
    import transformers as tf

    config = tf.Dinov2Config(hidden_size=20, num_attention_heads=5, num_hidden_layers=2, image_size=18, patch_size=6)
    processor = tf.BitImageProcessor(size={"shortest_edge": 21}, crop_size={"height": 18, "width": 18})
    _saved(tf.Dinov2Model(config), processor, directory)


def _deit(directory: Path) -> None:
    import transformers as tf

    config = tf.DeiTConfig(hidden_size=20, num_attention_heads=5, image_size=18, patch_size=6, num_labels=3, **_SMALL)
    processor = tf.DeiTImageProcessor(size={"height": 22, "width": 22}, crop_size={"height": 18, "width": 18})
    _saved(tf.DeiTForImageClassification(config), processor, directory)


def _words(directory: Path, *, siglip: bool) -> None:
    """A tokenizer of words, of 60 ids, the last of which ends texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "<unk>", *WORDS]
    words += [f"w{number}" for number in range(59 - len(words))]
    vocabulary = {**{word: number for number, word in enumerate(words)}, "</s>": 59}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>" if siglip else "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 59)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=64 if siglip else 24,
        model_input_names=["input_ids"] if siglip else ["input_ids", "attention_mask"],
    ).save_pretrained(directory)


def _clip(directory: Path) -> None:
    import transformers as tf

    text = {"vocab_size": 60, "hidden_size": 24, "num_attention_heads": 3, "max_position_embeddings": 24, **_SMALL}
    vision = {"hidden_size": 20, "num_attention_heads": 5, "image_size": 18, "patch_size": 6, **_SMALL}
    config = tf.CLIPConfig(
        text_config={**text, "eos_token_id": 59, "bos_token_id": 1, "pad_token_id": 0},
        vision_config=vision,
        projection_dim=14,
    )
    processor = tf.CLIPImageProcessor(size={"shortest_edge": 18}, crop_size={"height": 18, "width": 18})
    _saved(tf.CLIPModel(config), processor, directory)
    _words(directory, siglip=False)


def _siglip(directory: Path) -> None:
    import transformers as tf

    text = {"vocab_size": 60, "hidden_size": 24, "num_attention_heads": 3, "projection_size": 20, **_SMALL}
    vision = {"hidden_size": 20, "num_attention_heads": 5, "image_size": 18, "patch_size": 6, **_SMALL}
    config = tf.SiglipConfig(text_config=text, vision_config=vision)
    _saved(tf.SiglipModel(config), tf.SiglipImageProcessor(size={"height": 18, "width": 18}), directory)
    _words(directory, siglip=True)


MODELS: dict[str, Callable[[Path], None]] = {
    "vit": _vit,
    "swin-multi": _swin,
    "beit-one": _beit,
    "vit-features": _vit_features,
    "deit": _deit,
    "dinov2-features": _dinov2_features,
    "clip": _clip,
    "siglip": _siglip,
}


#: those that posexport converts through transformers, which has to be version 5
THROUGH = ("deit", "dinov2-features", "clip", "siglip")
#: those that tests convert (without transformers), or run on the library's logits
IN_TESTS = ("vit", "vit-features", "clip", "siglip")


@dataclass(frozen=True)
class Ask:
    """One call of the pipeline ``task`` of ``model``; ``inputs``: names of pictures, opened by ``form``."""

    model: str
    task: str
    inputs: list[str] | str
    options: dict[str, Any] = field(default_factory=dict)
    form: str = "file"

    @property
    def given(self) -> Any:
        made = {"file": str, "PIL": Image.open, "array": lambda path: np.array(Image.open(path).convert("RGB"))}
        opened = made[self.form]
        if isinstance(self.inputs, list):
            return [opened(PICTURES / name) for name in self.inputs]
        return opened(PICTURES / self.inputs)

    @property
    def said(self) -> str:
        options = ", ".join(f"{name}={value!r:.40}" for name, value in self.options.items())
        return f"{self.task} of {self.model}: {self.form} {self.inputs}{options and ' ' + options}"


PAIR = ["colour.png", "turned.jpg"]
EVERY = ["colour.png", "turned.jpg", "grey.png", "transparent.png", "palette.png", "cmyk.jpg"]


def asked() -> Iterator[Ask]:
    for model in ("vit", "swin-multi", "beit-one", "deit"):
        yield Ask(model, "image-classification", "turned.jpg")
        yield Ask(model, "image-classification", EVERY)
        yield Ask(model, "image-classification", EVERY, form="PIL")
    yield Ask("vit", "image-classification", "colour.png", {"top_k": 2})
    yield Ask("vit", "image-classification", PAIR, {"top_k": 99, "function_to_apply": "sigmoid", "batch_size": 2})
    yield Ask("vit", "image-classification", "turned.jpg", {"function_to_apply": "none"}, form="array")
    for model in ("vit-features", "dinov2-features"):
        yield Ask(model, "image-feature-extraction", "turned.jpg")
        yield Ask(model, "image-feature-extraction", PAIR, {"pool": True})
        yield Ask(model, "image-feature-extraction", "palette.png", {"image_processor_kwargs": {"resample": 0}})
    for model in ("clip", "siglip"):
        yield Ask(model, "zero-shot-image-classification", "turned.jpg", {"candidate_labels": LABELS})
        yield Ask(model, "zero-shot-image-classification", EVERY, {"candidate_labels": LABELS}, form="PIL")
        yield Ask(
            model,
            "zero-shot-image-classification",
            PAIR,
            {"candidate_labels": ["dog", "a house of red w3 w4"], "hypothesis_template": "{} ."},
        )
        yield Ask(model, "zero-shot-image-classification", "grey.png", {"candidate_labels": ["dog"]})


def theirs(ask: Ask, made: Any) -> Any:
    """The library's answer, as JSON has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plain(made(ask.given, **ask.options))


def library(ask: Ask, checkpoint: Path) -> Any:
    """``transformers.pipeline`` with its image processor by Pillow and NumPy."""
    from transformers import AutoImageProcessor, logging, pipeline

    logging.set_verbosity_error()
    by_pillow = {"use_fast": False} if version("transformers").startswith("4.") else {"backend": "pil"}
    processor = AutoImageProcessor.from_pretrained(checkpoint, **by_pillow)
    return pipeline(ask.task, model=str(checkpoint), image_processor=processor, device="cpu")


def cases(work: Path) -> Iterator[Case]:
    import posexport

    name = f"transformers {version('transformers')}"
    old = version("transformers").startswith("4.")
    for ask in (each for each in asked() if not (old and each.model in THROUGH)):
        checkpoint, bundle = work / ask.model, work / f"{ask.model}-bundle"
        if not bundle.exists():
            MODELS[ask.model](checkpoint)
            posexport.convert(str(checkpoint), bundle, verify=False)
        form = ""
        try:
            wanted = theirs(ask, library(ask, checkpoint))
        except TypeError as err:
            if not old:
                raise
            wanted, form = (
                f"TypeError: {err}",
                "transformers 4 does not take pictures in this form, transformers 5 does",
            )
        try:
            found = plain(posexport.pipeline(bundle, ask.task)(ask.given, **ask.options))
        except Exception as err:  # noqa: BLE001  # a row that says so, and the next one
            found = f"{type(err).__name__}: {err}"
        refused = ask.model == "vit-features" and ask.options.get("pool")  # its definition has no pooler
        yield Case(
            part="pipelines",
            asked=ask.said,
            library=name,
            ours=found,
            theirs=wanted,
            equal=equal(found, wanted),
            remark=str(found) if refused else form,
        )


def golden(into: Path, work: Path) -> None:
    """The library's answers, what its models of pictures and texts were given, and checkpoints without weights."""
    into.mkdir(parents=True, exist_ok=True)
    rows = []
    for ask in (each for each in asked() if each.model in IN_TESTS):
        checkpoint = work / ask.model
        if not checkpoint.exists():
            MODELS[ask.model](checkpoint)
            if ask.task.startswith("zero-shot"):  # its test has the library's logits, and converts nothing
                left_out = shutil.ignore_patterns(WEIGHTS, SHAPES)
                shutil.copytree(checkpoint, into / ask.model, ignore=left_out, dirs_exist_ok=True)
            else:
                store(checkpoint, into)
        made = library(ask, checkpoint)
        calls: list[dict[str, Any]] = []
        zero_shot = ask.task.startswith("zero-shot")
        if zero_shot:
            made.model.register_forward_hook(_kept_in(calls), with_kwargs=True)
        row = {**vars(ask), "answer": _rounded(theirs(ask, made))}
        rows.append({**row, "calls": calls} if zero_shot else row)
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    (into / "answers.json").write_text(f"[\n{lines}\n]\n")


def _kept_in(calls: list[dict[str, Any]]) -> Callable[..., None]:
    def keep(module: Any, arguments: Any, inputs: dict[str, Any], outputs: Any) -> None:  # noqa: ARG001
        texts = {name: inputs[name].tolist() for name in ("input_ids", "attention_mask") if name in inputs}
        pixels = digest(inputs["pixel_values"].numpy())
        calls.append({**texts, "pixels": pixels, "logits": outputs.logits_per_image.tolist()})

    return keep


def digest(pixels: Any) -> str:
    """A short hash of ``pixel_values``."""
    return hashlib.sha256(np.ascontiguousarray(pixels, dtype=np.float32).tobytes()).hexdigest()[:12]


def _rounded(value: Any) -> Any:
    """Numbers of large answers to 6 digits, which is what they are compared to."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        golden(GOLDEN, Path(temporary))
