"""Speech by an encoder of raw sound and a decoder of text, against transformers' pipeline with the same checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import posexport
from posexport import PosexportError
from tests.run.pipelines.test_image_to_text import with_words

RATE = 16000
#: samples of the sounds; each makes another number of states
LENGTHS = (5003, 3001, 4211)


def sounds() -> list[NDArray[np.float32]]:
    """Noise of different loudness, so that normalisation matters, on tones."""
    rng = np.random.default_rng(5)
    made = []
    for number, length in enumerate(LENGTHS):
        tone = np.sin(np.arange(length) * (0.02 + 0.05 * number))
        made.append(((number + 0.5) * (tone + rng.standard_normal(length)) + 0.2).astype(np.float32))
    return made


def made(kind: str, folder: Path, **extractor: Any) -> Path:
    """A checkpoint with a feature extractor and a tokenizer."""
    # the order of tokens, not the largest logit alone, which random weights give to one token for every sound
    transformers = with_words(kind, folder, no_repeat_ngram_size=1)
    transformers.Wav2Vec2FeatureExtractor(**extractor).save_pretrained(folder)
    return folder


@pytest.mark.all
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM's attention in transformers
@pytest.mark.parametrize(
    ("kind", "extractor"),
    [
        ("moonshine", {"do_normalize": False, "return_attention_mask": True}),
        ("speech-encoder-decoder", {"do_normalize": True, "return_attention_mask": True}),
        ("speech-encoder-decoder-gpt2", {"do_normalize": True, "return_attention_mask": False}),
        ("speech-encoder-decoder-bert", {"do_normalize": True, "return_attention_mask": True}),
    ],
)
def test_as_transformers(kind: str, extractor: dict[str, Any], tmp_path: Path) -> None:
    import torch
    import transformers

    folder = made(kind, tmp_path / "checkpoint", **extractor)
    posexport.convert(folder, tmp_path / "bundle", verify=False)
    recognise = posexport.pipeline(tmp_path / "bundle")
    assert recognise.task == "automatic-speech-recognition"
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(folder).eval()
    library: Any = transformers.pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        feature_extractor=transformers.AutoFeatureExtractor.from_pretrained(folder),
    )
    given = sounds()
    # beams and one sound a call, the default
    wanted = library([sound.copy() for sound in given], generate_kwargs={"max_new_tokens": 9})
    assert recognise(given, generate_kwargs={"max_new_tokens": 9}) == wanted
    assert len({each["text"] for each in wanted}) == len(given)
    # sounds of different lengths in one call
    greedy = {"max_new_tokens": 9, "num_beams": 1}
    wanted = library([sound.copy() for sound in given], batch_size=3, generate_kwargs=dict(greedy))
    assert recognise(given, batch_size=3, **greedy) == wanted
    named = {"raw": given[0], "sampling_rate": RATE, "speaker": "a"}
    assert recognise(dict(named), **greedy) == library(dict(named), generate_kwargs=dict(greedy))
    # chunks
    chunks: dict[str, Any] = {"chunk_length_s": 0.2, "stride_length_s": 0.03}
    wanted = library(given[0].copy(), generate_kwargs=dict(greedy), **chunks)
    assert recognise(given[0], **greedy, **chunks) == wanted
    # generate, with what Session.prepare makes of a batch
    session = posexport.load(tmp_path / "bundle")
    arrays = session.prepare(audio=given)
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
    rows = model.generate(**tensors, max_new_tokens=9, do_sample=False)
    done = session.generate(arrays, max_new_tokens=9).completions
    for row, completion in zip(rows.tolist(), done, strict=True):
        ids = row[1:]
        assert list(completion.tokens) == (ids[: ids.index(3)] if 3 in ids else ids)
    with pytest.raises(PosexportError, match="return_timestamps is 'word', and this model gives no times"):
        recognise(given[0], return_timestamps="word")
    with pytest.raises(PosexportError, match="which is for models with CTC"):
        recognise({"raw": given[0], "sampling_rate": RATE, "stride": (100, 100)})
    with pytest.raises(PosexportError, match="num_samples"):
        recognise(given[0][:19])
