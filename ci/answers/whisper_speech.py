"""Whisper's pipeline: windows by timestamps, overlapping chunks, languages and tasks."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ci.answers.audio import RATE, sound
from ci.answers.case import Case
from ci.answers.speech import PART, SPEECH, case, library_answer, plain
from ci.answers.tiny_whisper import tiny_whisper

#: of random weights; checkpoints of one second
SEEDS = (0, 1)
#: further keys of generation_config.json
FILES: dict[str, dict[str, Any]] = {
    "plain": {},
    "file": {"num_beams": 2, "return_timestamps": True, "max_new_tokens": 17, "max_length": None},
    "refused": {"return_timestamps": False},
    "words": {"alignment_heads": [[0, 1], [1, 0], [1, 2]]},
}
#: options of the conversion
CONVERTED: dict[str, dict[str, Any]] = {"words": {"outputs": ["cross_attentions"]}}
GREEDY = {"num_beams": 1}
WORDS = {"return_timestamps": "word"}
#: options, and samples at 16 kHz
ASKED: dict[str, list[tuple[dict[str, Any], int]]] = {
    "plain": [
        (GREEDY, 15000),
        ({}, 15000),
        (GREEDY, 40000),
        ({"return_timestamps": True, **GREEDY}, 15000),
        ({"return_timestamps": True, **GREEDY}, 33333),
        ({"return_timestamps": True, "return_language": True}, 40000),
        ({"return_language": True, **GREEDY}, 15000),
        ({"chunk_length_s": 1, **GREEDY}, 40000),
        ({"chunk_length_s": 0.9, "stride_length_s": (0.2, 0.1), "return_timestamps": True, **GREEDY}, 40000),
        ({"chunk_length_s": 1, "return_timestamps": True, "return_language": True}, 33333),
        ({"generate_kwargs": {"language": "german", "task": "translate", **GREEDY}}, 15000),
        ({"generate_kwargs": {"language": "yue", **GREEDY}, "return_timestamps": True}, 15000),
        ({"generate_kwargs": {"max_new_tokens": 7, "num_beams": 3}, "return_timestamps": True}, 40000),
        ({"generate_kwargs": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, **GREEDY}}, 15000),
    ],
    "file": [({}, 15000), ({}, 40000), ({"num_beams": 1, "return_language": True}, 40000)],
    "refused": [({"return_timestamps": True, **GREEDY}, 15000)],
    "words": [
        (WORDS, 15000),
        ({**WORDS, **GREEDY}, 33333),
        ({**WORDS, "num_beams": 3}, 40000),
        ({**WORDS, "chunk_length_s": 0.9, "stride_length_s": (0.2, 0.1), **GREEDY}, 40000),
        ({**WORDS, "generate_kwargs": {"language": "german", "max_new_tokens": 7, **GREEDY}}, 16000),
        ({**WORDS, "generate_kwargs": {"max_new_tokens": 1}}, 9000),
        ({**WORDS, **GREEDY}, 700),
    ],
}


def asked(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for options, samples in ASKED[name]:
        yield f"{samples / RATE:.2f} s {options}", sound(samples, seed=4), options


def cases(work: Path) -> Iterator[Case]:
    from transformers import __version__

    import posexport

    many = transcripts(2000)
    wrong = [each for each in many if our_transcript(*each) != library_transcript(*each)]
    yield Case(
        part=PART,
        asked=f"{len(many)} random outputs of Whisper as text and chunks",
        library=f"transformers {__version__} (_decode_asr)",
        ours=f"{len(many) - len(wrong)} equal",
        theirs="",
        equal=not wrong,
        remark="",
    )

    if __version__ < "5":  # counts max_length otherwise, and its pipeline overrules generation_config.json
        return
    for seed in SEEDS:
        for name, said in FILES.items():
            folder = tiny_whisper(work / f"{name}-{seed}", seed, **said)
            bundle = work / f"{name}-{seed}-bundle"
            posexport.convert(str(folder), bundle, verify=False, force=True, **CONVERTED.get(name, {}))
            ours = posexport.pipeline(bundle)
            for title, item, options in asked(name):
                yield case(f"whisper, seed {seed}, {name}: {title}", ours, folder, SPEECH, item, options)


#: ids of `random_outputs`: 20 texts, 7 special tokens, then timestamps
SPECIAL = {"<|endoftext|>": 20, "<|startoftranscript|>": 21, "<|en|>": 22, "<|de|>": 23, "<|transcribe|>": 24}
SPECIAL |= {"<|startofprev|>": 25, "<|notimestamps|>": 26}


def decoded(ids: list[int]) -> str:
    """The text of ids: letters, special tokens and timestamps by number."""
    names = {number: token for token, number in SPECIAL.items()}
    return "".join(names.get(each, chr(97 + each) if each < 20 else f"<{each}>") for each in ids)


def random_outputs(seed: int) -> list[tuple[list[int], tuple[float, float, float] | None]]:
    """Tokens of chunks of a sound with all that can be wrong about timestamps, and their strides in seconds."""
    draw = random.Random(seed)
    strided, count = draw.random() < 0.7, draw.randint(1, 4)
    found: list[tuple[list[int], tuple[float, float, float] | None]] = []
    for chunk in range(count):
        ids = [21, draw.choice([22, 22, 23]), 24] if draw.random() < 0.4 else []
        stamp = 0
        for _ in range(draw.randint(0, 12)):
            kind = draw.random()
            if kind < 0.35:
                stamp = min(1500, stamp + draw.randint(0, 60)) if draw.random() < 0.85 else draw.randint(0, 100)
                ids += [27 + stamp] * draw.choice([1, 2])
            else:
                ids.append(draw.choice([22, 23, 20, 26]) if kind < 0.38 else draw.randint(0, 4))
        left, right = (0.0 if edge else draw.uniform(0, 0.4) for edge in (chunk == 0, chunk == count - 1))
        found.append((ids, (draw.uniform(0.5, 2), left, right) if strided else None))
    return found


class Spelled:
    """A tokenizer as far as transformers' ``_decode_asr`` asks it."""

    all_special_ids = tuple(SPECIAL.values())

    def convert_tokens_to_ids(self, token: str) -> int:
        return SPECIAL[token]

    def decode(self, ids: list[int]) -> str:
        return decoded(ids)

    def _strip_prompt(self, ids: list[int], *_: int) -> list[int]:
        return ids


def library_transcript(seed: int, timestamps: bool, language: bool) -> Any:
    import torch
    from transformers.models.whisper.tokenization_whisper import _decode_asr

    outputs = [
        {"tokens": torch.tensor([ids], dtype=torch.long), **({"stride": stride} if stride else {})}
        for ids, stride in random_outputs(seed)
    ]
    options = {"return_timestamps": timestamps, "return_language": language, "time_precision": 0.02}
    return plain(_decode_asr(Spelled(), outputs, **options))


def our_transcript(seed: int, timestamps: bool, language: bool) -> Any:
    from posexport.run.audio.transcript import Seconds, SpeechTokens, Transcript

    tokens = SpeechTokens(
        special=frozenset(SPECIAL.values()),
        languages={22: "english", 23: "german"},
        first_timestamp=27,
        time_precision=0.02,
        decode=decoded,
    )
    transcript = Transcript(tokens, timestamps)
    for ids, stride in random_outputs(seed):
        transcript.add(ids, Seconds(*stride) if stride else None)
    found = transcript.chunks()
    text = "".join(each["text"] for each in found)
    if not timestamps and not language:
        return [text, {}]
    kept = [name for name, asked in (("language", language), ("timestamp", timestamps)) if asked]
    return plain([text, {"chunks": [{key: each[key] for key in (*kept, "text")} for each in found]}])


def transcripts(count: int) -> list[tuple[int, bool, bool]]:
    return [(seed, seed % 3 != 0, seed % 2 == 0) for seed in range(count)]


def golden(into: Path) -> None:
    """What the library answers for the first seed's checkpoints."""
    import tempfile

    import transformers

    kept: dict[str, Any] = {"transformers": transformers.__version__}
    with tempfile.TemporaryDirectory() as work:
        for name, said in FILES.items():
            folder = tiny_whisper(Path(work) / name, SEEDS[0], **said)
            kept[name] = {title: library_answer(folder, SPEECH, item, options) for title, item, options in asked(name)}
    kept["transcripts"] = [library_transcript(*each) for each in transcripts(60)]
    (into / "whisper.json").write_text(json.dumps(kept, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    golden(Path(__file__).parent.parent.parent / "tests" / "answers" / "audio")
