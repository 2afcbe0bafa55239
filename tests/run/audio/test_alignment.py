"""Dynamic time warping and words against transformers' functions, on random numbers."""

import string
from typing import Any

import numpy as np
import pytest

from posexport.run.audio.alignment import first_times, token_times
from posexport.run.audio.words import TimedToken, words


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (5, 5), (12, 40), (40, 12)])
def test_warping_is_the_librarys(shape: tuple[int, int]) -> None:
    generation = pytest.importorskip("transformers.models.whisper.generation_whisper")
    rng = np.random.default_rng(shape[0])
    for cost in (rng.standard_normal(shape), rng.integers(0, 3, shape).astype(np.float64), np.full(shape, np.nan)):
        if shape[0] > 1 and np.isnan(cost).any():
            continue  # only a single token has no deviation
        texts, times = generation._dynamic_time_warping(cost)
        assert first_times(cost).tolist() == times[np.diff(texts, prepend=-1) > 0].tolist()


@pytest.mark.filterwarnings("ignore:std")  # of one token, or of no frame
@pytest.mark.parametrize("frames", [100, 61, 9, 1, 0, -30])
@pytest.mark.parametrize("tokens", [1, 2, 11])
def test_times_are_the_librarys(frames: int, tokens: int) -> None:
    torch = pytest.importorskip("torch")
    generation = pytest.importorskip("transformers.models.whisper.generation_whisper")
    from transformers import WhisperConfig
    from transformers.utils import ModelOutput

    weights = np.random.default_rng(tokens).random((3, tokens, 50), np.float32) ** 4
    prompt = torch.zeros(1, 3, 2, 50)
    attentions = [torch.cat((prompt, torch.from_numpy(weights)[None]), 2)]
    library = type("Library", (), {"config": WhisperConfig(decoder_layers=1)})()
    output = ModelOutput(sequences=torch.zeros(1, tokens + 3), cross_attentions=[attentions])
    options: dict[str, Any] = {"num_frames": torch.tensor([frames]), "num_input_ids": 2}
    heads = [[0, 2], [0, 0], [0, 1]]
    right = generation.WhisperGenerationMixin._extract_token_timestamps(library, output, heads, **options)
    ours = token_times(weights[[2, 0, 1]], frames, 7)
    assert ours.tolist() == right[0, 2:-1].tolist()


def test_words_are_the_librarys() -> None:
    tokenization = pytest.importorskip("transformers.models.whisper.tokenization_whisper")
    pieces = [*"ab", " c", " ", ".", ",", ' "', '"', "ing", "。", " (", ")", "é"]
    # the parts of a character, and a replacement character
    as_bytes = [*(piece.encode() for piece in pieces), *(bytes([each]) for each in "字".encode()), "\ufffd".encode()]

    class Spelled:
        eos_token_id = 1000
        language = None

        def decode(self, ids: list[int], **_: Any) -> str:
            return b"".join(as_bytes[each] for each in ids).decode(errors="replace")

    rng = np.random.default_rng(0)
    for count in (*range(1, 6), *[30] * 60):
        ids = rng.integers(0, len(as_bytes), count).tolist()
        spans = [(float(number), number + 0.5) for number in range(count)]
        for language in ("english", "japanese"):
            right = tokenization._collate_word_timestamps(Spelled(), ids, spans, language, False)
            tokens = [TimedToken(*pair) for pair in zip(ids, spans, strict=True)]
            assert words(tokens, Spelled().decode, language, 1000) == right
    assert set(string.punctuation) == set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
