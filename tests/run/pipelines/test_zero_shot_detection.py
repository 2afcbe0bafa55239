"""Boxes of what texts describe: as ``transformers.pipeline`` returns them for the same tiny checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import posexport
from ci.answers.images import PICTURES
from posexport import PosexportError
from posexport.run.pipelines.zero_shot_object_detection import ZeroShotObjectDetection
from tests.tolerances import agree

COLOUR, TURNED = (str(PICTURES / name) for name in ("colour.png", "turned.jpg"))
LABELS = ["a cat", "red ball on grass"]
WORDS = ["[PAD]", "[UNK]", "<s>", "a", "cat", "red", "ball", "on", "grass"]
#: the model pools at the largest id
END = 63


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer of words and an image processor."""
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    from ci.through import tiny

    at: Path = tmp_path_factory.mktemp("owlvit") / "owlvit"
    tiny.make(at, tiny.table()["owlvit"])
    vocab = {word: number for number, word in enumerate(WORDS)} | {"</s>": END}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", END)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(at)
    size = {"height": 16, "width": 16}
    transformers.OwlViTImageProcessorPil(size=size).save_pretrained(at)
    posexport.convert(at, at.parent / "bundle", verify=False)
    return at


@pytest.mark.all
def test_boxes_as_the_library(folder: Path) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.pipeline(
        "zero-shot-object-detection", model=str(folder), image_processor=processor, tokenizer=tokenizer, device="cpu"
    )
    ours = posexport.pipeline(folder.parent / "bundle")
    assert ours.task == "zero-shot-object-detection"
    for picture in (COLOUR, TURNED):
        several: list[dict[str, Any]] = [{"threshold": 0.0}, {"threshold": 0.2, "top_k": 3}]
        for options in several:
            expected = theirs(picture, candidate_labels=LABELS, **options)
            found: list[dict[str, Any]] = ours(picture, candidate_labels=LABELS, **options)
            assert expected
            assert [item["label"] for item in found] == [item["label"] for item in expected]
            mine, other = (np.array([item["score"] for item in items]) for items in (found, expected))
            agree(mine, other, "another library", np.float32)
            for item, reference in zip(found, expected, strict=True):
                assert all(abs(item["box"][edge] - reference["box"][edge]) <= 1 for edge in reference["box"])
    both = ours([COLOUR, TURNED], candidate_labels=LABELS, batch_size=2)
    assert both == [ours(picture, candidate_labels=LABELS) for picture in (COLOUR, TURNED)]


@pytest.mark.all
def test_texts_belong_to_images_as_in_the_library(folder: Path) -> None:
    import torch
    import transformers

    model = transformers.OwlViTForObjectDetection.from_pretrained(folder)
    rng = np.random.default_rng(0)
    ids, pixels = rng.integers(1, END, (6, 5)), rng.standard_normal((3, 3, 16, 16)).astype(np.float32)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "pixel_values": pixels}
    session = posexport.load(folder.parent / "bundle")
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(x) for name, x in feeds.items()})
    found = session.run(feeds)
    assert found["logits"].shape == (3, 16, 2)
    for name, x in found.items():
        agree(x, expected[name].numpy(), "another library", np.float32)
    said = "input_ids has batch_size 6, pixel_values has image_batch_size 4; give a multiple of 4"
    with pytest.raises(PosexportError, match=said):
        session.run({**feeds, "pixel_values": np.concatenate([pixels, pixels[:1]])})


def test_labels_are_needed(folder: Path) -> None:
    with pytest.raises(PosexportError, match=r"candidate_labels must be a list of texts, got None"):
        posexport.pipeline(folder.parent / "bundle")(COLOUR)


def test_logits_of_words_are_no_scores_of_texts() -> None:
    files = SimpleNamespace(config={"model_type": "grounding-dino"})
    with pytest.raises(PosexportError, match=r"logits of grounding-dino are of words of one text, .*use session.run"):
        ZeroShotObjectDetection.setup(SimpleNamespace(files=files))  # type: ignore[arg-type]
