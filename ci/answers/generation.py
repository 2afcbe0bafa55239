"""Generation: tokens and scores of ``model.generate()``, by the options of a call and of generation_config.json.

The checkpoints are those of tests/golden, with weights in float32. ``python -m ci.answers.generation`` writes the
answers that tests/run/test_generation_answers.py compares with.
"""

import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ci.answers.case import Case

ROOT = Path(__file__).parent.parent.parent
CHECKPOINTS = ROOT / "tests" / "golden"
ANSWERS = ROOT / "tests" / "answers" / "generation"
#: by a short name: the checkpoint's folder
MODELS = {
    "gpt2": "gpt2-lmheadmodel",
    "qwen2": "qwen2-forcausallm",
    "t5": "t5-forconditionalgeneration",
    "bart": "bart-forconditionalgeneration",
    "mbart": "mbart-forconditionalgeneration",
    "marian": "marian-mtmodel",
    "whisper": "whisper-forconditionalgeneration",
}
DECODERS, TRANSLATORS = ("gpt2", "qwen2"), ("t5", "bart")
PROMPTS = [[5, 9, 5, 9, 7, 3], [8, 4, 11], [6, 12, 17, 6, 10, 14, 6, 12]]
#: of scores that are compared: float32 in two libraries
CLOSE = 2e-4
PADDING = "4.57 also penalizes the token that fills up shorter prompts; posexport and 5.24 do not (docs/generation.md)"
#: Whisper's tokens in the checkpoint's vocabulary of 29
WHISPER = {
    "eos_token_id": 12,
    "pad_token_id": 12,
    "lang_to_id": {"<|en|>": 6, "<|fr|>": 7, "<|zh|>": 8},
    "task_to_id": {"transcribe": 9, "translate": 10},
    "no_timestamps_token_id": 13,
    "max_initial_timestamp_index": 5,
    "is_multilingual": True,
    "begin_suppress_tokens": [1, 12],
    "suppress_tokens": [4],
}


@dataclass(frozen=True)
class Question:
    """One call: ``file``: generation_config.json, None: as it is; ``alone``: a prompt at a time."""

    name: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    file: dict[str, Any] | None = None
    alone: bool = False


NEW = {"max_new_tokens": 12}
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "greedy": {},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_new_tokens, several end tokens": {"min_new_tokens": 4, "eos_token_id": [2, 5, 7, 9, 11, 13]},
    "suppress_tokens, begin_suppress_tokens": {"suppress_tokens": [3, 15, 20], "begin_suppress_tokens": [6, 8, 9, 19]},
    "bad_words_ids, sequence_bias": {
        "bad_words_ids": [[4], [6, 6], [15, 3]],
        "sequence_bias": [[[7], 3.0], [[7, 9], 4.0], [[10], -2.5]],
    },
    "forced_eos_token_id": {"forced_eos_token_id": 9},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": [3, 1.2]},
    "renormalize_logits, remove_invalid_values": {"renormalize_logits": True, "remove_invalid_values": True},
    "top_k 1 of sampling, repetition_penalty": {"do_sample": True, "top_k": 1, "repetition_penalty": 1.4},
    "3 beams": {"num_beams": 3},
    "4 beams, 3 sequences, early_stopping": {
        "num_beams": 4,
        "num_return_sequences": 3,
        "early_stopping": True,
        "eos_token_id": [2, 5, 9],
    },
    "2 beams, length_penalty 2": {"num_beams": 2, "length_penalty": 2.0, "eos_token_id": [2, 7, 9, 16]},
    "4 beams, early_stopping never, length_penalty -1": {
        "num_beams": 4,
        "num_return_sequences": 4,
        "early_stopping": "never",
        "length_penalty": -1.0,
        "eos_token_id": [2, 5],
    },
    "4 beams, early_stopping never": {"num_beams": 4, "early_stopping": "never", "eos_token_id": [2, 5, 18]},
    # where the rule for stopping, and the number of candidates, decide
    "2 beams, early_stopping never, length_penalty 2": {
        "num_beams": 2,
        "early_stopping": "never",
        "length_penalty": 2.0,
        "eos_token_id": [3, 6, 17, 19, 20, 21],
    },
    "4 beams, early_stopping never, length_penalty 4": {
        "num_beams": 4,
        "early_stopping": "never",
        "length_penalty": 4.0,
        "eos_token_id": [21],
    },
    "3 beams, 4 end tokens": {"num_beams": 3, "length_penalty": 2.0, "eos_token_id": [2, 8, 9, 11]},
    "3 beams, repetition_penalty, no_repeat_ngram_size": {
        "num_beams": 3,
        "num_return_sequences": 2,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
    },
    "3 beams, min_new_tokens, forced_eos_token_id": {
        "num_beams": 3,
        "min_new_tokens": 5,
        "forced_eos_token_id": 2,
        "eos_token_id": [2, 5, 7, 9],
    },
}
ENCODERS: dict[str, dict[str, Any]] = {
    "forced_bos_token_id, begin_suppress_tokens": {"forced_bos_token_id": 7, "begin_suppress_tokens": [19, 20, 21]},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2, "repetition_penalty": 0.6},
}
#: as the folders of real checkpoints state them
FILES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "bart-large-cnn's generation_config.json",
        "bart",
        {
            "num_beams": 4,
            "no_repeat_ngram_size": 3,
            "length_penalty": 2.0,
            "early_stopping": True,
            "min_length": 6,
            "max_length": 14,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
        },
    ),
    (
        "Qwen2.5-Instruct's, but for sampling",
        "qwen2",
        {"repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_new_tokens": 9},
    ),
    ("opus-mt's", "marian", {"num_beams": 6, "max_length": 15, "bad_words_ids": [[28]], "forced_eos_token_id": 0}),
    ("mbart-50's", "mbart", {"num_beams": 5, "max_length": 12, "early_stopping": True, "forced_eos_token_id": 2}),
    ("min_length and max_length", "gpt2", {"min_length": 12, "max_length": 16, "num_beams": 2}),
]
SPEECH: dict[str, dict[str, Any]] = {
    "language detected": {},
    "language, task": {"language": "french", "task": "translate"},
    "language by its code": {"language": "en"},
    "languages of each sound": {"language": ["fr", "en", "<|zh|>"]},
    "timestamps": {"return_timestamps": True, "language": "en"},
    "timestamps, 3 beams": {"return_timestamps": True, "task": "transcribe", "num_beams": 3},
}


def questions() -> Iterator[Question]:
    """All of them."""
    for model in (*DECODERS, *TRANSLATORS):
        settings = ONE_BY_ONE | (ENCODERS if model in TRANSLATORS else {})
        for name, options in settings.items():
            # padding counts as tokens there: repeated n-grams of it, and in 4.57 the penalty
            padded = model in DECODERS and "no_repeat_ngram_size" in options
            unpadded = model in TRANSLATORS and any(key.startswith("encoder_") for key in options)
            # else most of their tokens would be this one
            base = NEW | ({"suppress_tokens": [0]} if model in TRANSLATORS else {})
            yield Question(name, model, {**base, **options}, alone=padded or unpadded)
    for name, model, stated in FILES:
        yield Question(name, model, {}, stated, alone=True)
    yield Question("the same, and the call overrides", "bart", {"num_beams": 1, "max_new_tokens": 9}, FILES[0][2])
    for name, options in SPEECH.items():
        yield Question(name, "whisper", {"max_new_tokens": 10, **options}, WHISPER)
    forced = WHISPER | {"forced_decoder_ids": [[1, 7], [2, 10], [3, 13]]}
    yield Question("forced_decoder_ids", "whisper", {"max_new_tokens": 10}, forced)


def sounds() -> np.ndarray:
    """Spectrograms of three sounds, [3, mel bins, frames]."""
    return (np.random.default_rng(5).integers(-96, 97, (3, 7, 22)) / 64).astype(np.float32)


def checkpoint(question: Question, work: Path) -> Path:
    """The folder with the question's generation_config.json."""
    name = str(abs(hash(json.dumps([question.model, question.file]))))
    if not (work / name).exists():
        shutil.copytree(CHECKPOINTS / MODELS[question.model], work / name)
        if question.file is not None:
            target = work / name / "generation_config.json"
            before = json.loads((target if target.exists() else work / name / "config.json").read_text())
            before = {key: value for key, value in before.items() if key.endswith(("token_id", "token_ids"))}
            target.write_text(json.dumps(before | question.file))
    return work / name


# -- transformers ----------------------------------------------------------------------------------


class Theirs:
    """Asks transformers."""

    def __init__(self) -> None:
        self._models: dict[Path, Any] = {}

    def _model(self, folder: Path, question: Question) -> Any:
        import torch
        import transformers

        if folder not in self._models:
            kind = json.loads((folder / "config.json").read_text())["architectures"][0]
            model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32)
            self._models[folder] = model.eval()
        return self._models[folder]

    def __call__(self, question: Question, folder: Path) -> list[dict[str, Any]]:
        """Tokens and score of each sequence."""
        import torch

        model = self._model(folder, question)
        config = model.generation_config
        options = dict(question.options)
        ends = options.get("eos_token_id", config.eos_token_id)
        ends = set([ends] if isinstance(ends, int) else ends)
        found = []
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            if question.model == "whisper":
                made = model.generate(
                    torch.tensor(sounds()), force_unique_generate_call=True, use_cache=False, **options
                )
                return [{"tokens": row.tolist()[:4] + cut(row.tolist()[4:], ends), "score": None} for row in made]
            for batch in [[prompt] for prompt in PROMPTS] if question.alone else [PROMPTS]:
                width = max(map(len, batch))
                left = question.model in DECODERS
                padding = config.pad_token_id if config.pad_token_id is not None else 0
                ids, mask = np.full((len(batch), width), padding), np.zeros((len(batch), width), np.int64)
                for row, prompt in enumerate(batch):
                    place = slice(width - len(prompt), None) if left else slice(0, len(prompt))
                    ids[row, place], mask[row, place] = prompt, 1
                made = model.generate(
                    torch.tensor(ids),
                    attention_mask=torch.tensor(mask),
                    return_dict_in_generate=True,
                    output_scores=True,
                    use_cache=left,  # its cache takes no decoder with more layers than the encoder
                    **({"pad_token_id": 0} if config.pad_token_id is None else {}),
                    **options,
                )
                begins = width if left else 1
                scores = getattr(made, "sequences_scores", None)
                for number, row in enumerate(made.sequences.tolist()):
                    score = None if scores is None else float(scores[number])
                    found.append({"tokens": cut(row[begins:], ends), "score": score})
        return found


def cut(row: list[int], ends: set[int]) -> list[int]:
    """A row up to its first end token."""
    return row[: next((place for place, token in enumerate(row) if token in ends), len(row))]


# -- posexport -------------------------------------------------------------------------------------


class Ours:
    """Asks posexport."""

    def __init__(self, work: Path, cache: str = "dynamic") -> None:
        self._work, self._cache = work, cache
        self._sessions: dict[Path, Any] = {}

    def __call__(self, question: Question, folder: Path) -> list[dict[str, Any]]:
        return answers(self.session(folder), question)

    def session(self, folder: Path) -> Any:
        import posexport

        if folder not in self._sessions:
            target = self._work / f"{folder.name}-{self._cache}"
            posexport.convert(str(folder), target, verify=False, precision="fp32", cache=self._cache)
            self._sessions[folder] = posexport.load(target, threads=1)
        return self._sessions[folder]


def answers(session: Any, question: Question) -> list[dict[str, Any]]:
    """Tokens and score of each completion; of Whisper with its first tokens."""
    speech = question.model == "whisper"
    made = session.generate({"input_features": sounds()} if speech else PROMPTS, **question.options)
    return [{"tokens": one.prompt_tokens * speech + one.tokens, "score": one.score} for one in made.completions]


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    """The same tokens, and scores within `CLOSE`."""
    return len(ours) == len(theirs) and all(
        one["tokens"] == other["tokens"]
        and (one["score"] is None or other["score"] is None or abs(one["score"] - other["score"]) <= CLOSE)
        for one, other in zip(ours, theirs, strict=True)
    )


def cases(work: Path) -> Iterator[Case]:
    import transformers

    library = f"transformers {transformers.__version__}"
    four = transformers.__version__.startswith("4.")
    theirs, ours = Theirs(), Ours(work)
    for question in questions():
        folder = checkpoint(question, work)
        wanted, found = theirs(question, folder), ours(question, folder)
        shown = [[one["tokens"] for one in each] for each in (found, wanted)]
        yield Case(
            part="generation",
            asked=f"{question.model}: {question.name}, {'each alone' if question.alone else 'a padded batch of 3'}",
            library=library,
            ours=shown[0],
            theirs=shown[1],
            equal=same(found, wanted),
            remark=PADDING if four and "repetition_penalty" in question.options and question.model == "gpt2" else "",
        )
    yield from _processor_cases(library)
    yield from _segment_cases(library)


# -- processors ------------------------------------------------------------------------------------

VOCAB, LENGTH, PROMPT = 37, 11, 4
_ENDS = [2, 30]
#: by name: options; ids are drawn below 9, so that some repeat
PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.4},
    "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 1},
    "no_repeat_ngram_size 2": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5], [1, 7], [30], [4, 3, 8], [3, 3]]},
    "sequence_bias": {"sequence_bias": [[[5], 2.0], [[1, 7], -3.5], [[3, 8], 1.5]]},
    "min_length": {"min_length": 12},
    "min_length reached": {"min_length": 11},
    "min_new_tokens": {"min_new_tokens": 8},
    "forced_eos_token_id": {"forced_eos_token_id": [2, 9], "max_length": 12},
    "remove_invalid_values": {"remove_invalid_values": True},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 1.3)},
    "suppress_tokens": {"suppress_tokens": [1, 5, 36]},
    "renormalize_logits": {"renormalize_logits": True},
    "temperature": {"do_sample": True, "temperature": 0.6, "top_k": 0},
    "top_k": {"do_sample": True, "top_k": 7},
    "top_p": {"do_sample": True, "top_p": 0.6, "top_k": 0},
    "min_p": {"do_sample": True, "min_p": 0.1, "top_k": 0},
    "top_h": {"do_sample": True, "top_h": 0.5, "top_k": 0},
    "typical_p": {"do_sample": True, "typical_p": 0.5, "top_k": 0},
    "epsilon_cutoff": {"do_sample": True, "epsilon_cutoff": 0.02, "top_k": 0},
    "eta_cutoff": {"do_sample": True, "eta_cutoff": 0.1, "top_k": 0},
    "top_p, 3 beams": {"do_sample": True, "num_beams": 3, "top_p": 0.01, "top_k": 0},
    "min_p, epsilon_cutoff, eta_cutoff, typical_p, 3 beams": {
        "do_sample": True,
        "num_beams": 3,
        "min_p": 0.999,
        "epsilon_cutoff": 0.99,
        "eta_cutoff": 0.9,
        "typical_p": 0.01,
        "top_k": 1,
    },
    "everything": {
        "do_sample": True,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[5]],
        "exponential_decay_length_penalty": (1, 1.1),
        "suppress_tokens": [0],
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "typical_p": 0.95,
        "epsilon_cutoff": 0.01,
        "eta_cutoff": 0.02,
        "renormalize_logits": True,
    },
}
#: tokens behind Whisper's prompt; timestamps are ids from 20 on
STAMPS: dict[str, list[list[int]]] = {
    "at the beginning": [[], [], []],
    "one timestamp": [[20], [24], [27]],
    "text, a pair, a pair and text": [[20, 3, 4, 5], [20, 3, 25, 25], [22, 22, 3, 24]],
}
_WHISPER_FIRST = 20


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids [3, S], the encoder's ids [3, 6] and logits [3, V]."""
    rng = np.random.default_rng(11)
    ids, context = rng.integers(0, 9, (3, LENGTH)), rng.integers(0, 9, (3, 6))
    context[:, 2] = ids[:, -1]
    return ids, context, (2.5 * rng.standard_normal((3, VOCAB))).astype(np.float32)


def invalid(logits: np.ndarray) -> np.ndarray:
    """Logits of which some are no numbers."""
    logits = logits.copy()
    logits[0, 3], logits[1, 4], logits[2, 5] = np.nan, np.inf, -np.inf
    return logits


def processed_by_transformers(name: str, options: dict[str, Any]) -> np.ndarray:
    """The scores that transformers' processors make of the drawn logits."""
    import torch
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

    ids, context, logits = drawn()
    if name == "remove_invalid_values":
        logits = invalid(logits)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=4, n_head=1, n_layer=1))
    chosen = {"num_beams": 1, "do_sample": False, **options}
    config = GenerationConfig(eos_token_id=_ENDS, **chosen)
    config._eos_token_tensor = torch.tensor(_ENDS)  # noqa: SLF001  # generate sets it
    each = model._get_logits_processor(  # noqa: SLF001  # no other way to its order
        config,
        input_ids_seq_length=PROMPT,
        encoder_input_ids=torch.tensor(context),
        prefix_allowed_tokens_fn=None,
        logits_processor=[],
        device="cpu",
        model_kwargs={},
    )
    found: np.ndarray = each(torch.tensor(ids), torch.tensor(logits)).numpy()
    return found


def processed_by_posexport(name: str, options: dict[str, Any]) -> np.ndarray:
    """The scores that posexport's processors make of the drawn logits."""
    from posexport.run.generate.config import GenerationConfig
    from posexport.run.logits.processor import Setting
    from posexport.run.logits.registry import process, processors

    ids, context, logits = drawn()
    if name == "remove_invalid_values":
        logits = invalid(logits)
    config = GenerationConfig(**{"do_sample": False, **options})
    setting = Setting(eos=tuple(_ENDS), context=context.tolist(), beams=config.beams)
    return process(logits, rows_of(ids, PROMPT, options.get("max_length", 64)), processors(config, setting))


def rows_of(ids: np.ndarray, prompt: int, most: int) -> Any:
    """The ids as rows of a batch, of which so many are the prompts'."""
    from posexport.run.logits.processor import TokenRows

    rows = TokenRows(ids[:, :prompt].tolist(), [most] * len(ids))
    for column in ids[:, prompt:].T:
        rows.append(column)
    return rows


def stamped_by_transformers(tokens: list[list[int]]) -> np.ndarray:
    import torch
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = GenerationConfig(eos_token_id=18, no_timestamps_token_id=19, max_initial_timestamp_index=4)
    ids = torch.tensor([[1, 2, *row] for row in tokens])
    found: np.ndarray = WhisperTimeStampLogitsProcessor(config, begin_index=2)(ids, torch.tensor(drawn()[2])).numpy()
    return found


def stamped_by_posexport(tokens: list[list[int]]) -> np.ndarray:
    from posexport.run.logits.processor import Timestamps
    from posexport.run.logits.whisper_timestamps import WhisperTimestamps

    rows = rows_of(np.array([[1, 2, *row] for row in tokens]), 2, 64)
    return WhisperTimestamps(Timestamps(_WHISPER_FIRST, 18, 4))(drawn()[2], rows)


def _processor_cases(library: str) -> Iterator[Case]:
    asked = {name: (processed_by_posexport, processed_by_transformers, options) for name, options in PROCESSORS.items()}
    import transformers

    for name, (ours, theirs, options) in asked.items():
        if name == "top_h" and not hasattr(transformers, "TopHLogitsWarper"):
            continue  # 4.57 has none
        yield _compared(name, library, ours(name, options), theirs(name, options))
    for name, tokens in STAMPS.items():
        yield _compared(f"timestamps: {name}", library, stamped_by_posexport(tokens), stamped_by_transformers(tokens))


def _segment_cases(library: str) -> Iterator[Case]:
    """Tokens of a window cut at their timestamps."""
    from posexport.run.whisper import segments

    windows = {
        "a timestamp at the end": [20, 3, 4, 25, 25, 7, 33],
        "a pair at the end": [20, 3, 25, 25, 7, 31, 31],
        "no end of the last segment": [20, 3, 25, 25, 7],
        "no timestamps": [3, 4],
        "one segment": [20, 3, 27],
        "a beginning alone": [20, 3],
    }
    for name, tokens in windows.items():
        found, step = segments(tokens, _WHISPER_FIRST, frames=200, offset=30.0)
        ours = ([(round(each.start, 6), round(each.end, 6), each.tokens) for each in found], step)
        theirs = _cut_by_transformers(tokens)
        yield Case(
            part="generation",
            asked=f"whisper's segments: {name}",
            library=library,
            ours=ours,
            theirs=theirs,
            equal=ours == theirs,
        )


def _cut_by_transformers(tokens: list[int]) -> tuple[list[tuple[float, float, list[int]]], int]:
    import torch
    from transformers import WhisperForConditionalGeneration

    found, step = WhisperForConditionalGeneration._retrieve_segment(  # noqa: SLF001  # generate calls it for each window
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[{}],
        time_offset=torch.tensor([30.0], dtype=torch.float64),
        timestamp_begin=_WHISPER_FIRST,
        seek_num_frames=torch.tensor([200]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3, dtype=torch.long),
    )
    rows = [(round(float(each["start"]), 6), round(float(each["end"]), 6), each["tokens"].tolist()) for each in found]
    return rows, int(step)


def _compared(name: str, library: str, ours: np.ndarray, theirs: np.ndarray) -> Case:
    shown = [np.round(scores[0], 3).tolist() for scores in (ours, theirs)]
    return Case(
        part="logits processors", asked=name, library=library, ours=shown[0], theirs=shown[1], equal=close(ours, theirs)
    )


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal to float32, and infinite at the same places."""
    finite = np.isfinite(theirs)
    return bool((np.isfinite(ours) == finite).all()) and np.allclose(ours[finite], theirs[finite], 1e-5, 1e-6)


def golden(into: Path = ANSWERS) -> None:
    """Write transformers' answers."""
    import tempfile

    into.mkdir(parents=True, exist_ok=True)
    theirs = Theirs()
    with tempfile.TemporaryDirectory() as work:
        answers = [theirs(question, checkpoint(question, Path(work))) for question in questions()]
    lines = ",\n".join(json.dumps(answer) for answer in answers)
    (into / "generate.json").write_text(f"[\n{lines}\n]\n")
    scores = {name: processed_by_transformers(name, options) for name, options in PROCESSORS.items()}
    scores |= {f"timestamps: {name}": stamped_by_transformers(tokens) for name, tokens in STAMPS.items()}
    np.savez_compressed(into / "processors.npz", **scores)


if __name__ == "__main__":
    golden()
