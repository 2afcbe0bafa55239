"""The text in a picture or about it, against transformers' own generation with the same tiny checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

import posexport
from ci.answers.images import PICTURES
from posexport import PosexportError

PICTURE, GREY = str(PICTURES / "colour.png"), str(PICTURES / "grey.png")


def with_words(kind: str, folder: Path, **generation: Any) -> Any:
    """A checkpoint with a tokenizer, whose words are ``w4``, ``w5`` and so on; returns transformers."""
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from tokenizers import Tokenizer, models, pre_tokenizers

    from ci.through import tiny

    tiny.make(folder, tiny.table()[kind])
    words = {"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, **{f"w{number}": number for number in range(4, 64)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    stated = {"decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1, **generation}
    (folder / "generation_config.json").write_text(json.dumps(stated))
    return transformers


def made(kind: str, folder: Path) -> Path:
    """A checkpoint with an image processor, too."""
    processor = with_words(kind, folder).ViTImageProcessorPil
    processor(size={"height": 12, "width": 12}, do_convert_rgb=True).save_pretrained(folder)
    return folder


def of_library(folder: Path, pictures: list[str], **options: Any) -> list[list[dict[str, str]]]:
    """What transformers 4's pipeline does: its processor, ``generate`` and ``decode``."""
    import transformers
    from PIL import Image

    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    model = kind.from_pretrained(folder).eval()
    answers = []
    for picture in pictures:
        pixels = processor(Image.open(picture).convert("RGB"), return_tensors="pt")["pixel_values"]
        rows = model.generate(pixel_values=pixels, **options)
        answers.append([{"generated_text": tokenizer.decode(ids, skip_special_tokens=True)} for ids in rows])
    return answers


@pytest.mark.all
@pytest.mark.parametrize("kind", ["vision-encoder-decoder", "vision-encoder-decoder-bert", "blip-captions"])
def test_as_transformers(kind: str, tmp_path: Path) -> None:
    folder = made(kind, tmp_path / "checkpoint")
    posexport.convert(folder, tmp_path / "bundle", verify=False)
    describe = posexport.pipeline(tmp_path / "bundle")
    assert describe.task == "image-to-text"
    want = of_library(folder, [PICTURE, GREY], max_new_tokens=9)
    assert describe([PICTURE, GREY], max_new_tokens=9) == want
    assert want[0] != want[1]
    assert describe(PICTURE, max_new_tokens=9, batch_size=2) == want[0]
    beams = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6}
    assert describe(GREY, generate_kwargs=beams) == of_library(folder, [GREY], **beams)[0]
    with pytest.raises(PosexportError, match="stands in the call and in generate_kwargs; give it once"):
        describe(PICTURE, max_new_tokens=3, generate_kwargs={"max_new_tokens": 4})
