"""Pipelines of sound: what ``audio-classification`` and ``automatic-speech-recognition`` answer."""

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ci.answers.audio import RATE, sound
from ci.answers.case import Case

PART = "sound pipelines"
ROOT = Path(__file__).parent.parent.parent
SPEECH, CLASSES = "automatic-speech-recognition", "audio-classification"
#: a checkpoint with frames of 6 samples
TINY = ROOT / "tests" / "golden" / "wavlm-layer-forctc"
#: added to its biases, so that every token is the likeliest of some frames
BIASES = [1.55, 0.0, 1.6, 0.7, -0.7, 0.35, 2.0, 2.55, 3.4, 0.9, 2.4, -1.5, 2.1]
#: 13 tokens, two of them words of several characters
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "|", "E", "T", "A", "'", ".", "n't", "ING", "O"]
TOKENIZER = {
    "tokenizer_class": "Wav2Vec2CTCTokenizer",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "word_delimiter_token": "|",
}
#: tokenizers that decode the same frames otherwise
TOKENIZERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lower": {"do_lower_case": True},
    "clean": {"clean_up_tokenization_spaces": True, "do_lower_case": True},
    "other": {"pad_token": "T", "replace_word_delimiter_char": "_"},
    "unknown": {"unk_token": "?"},
}
#: one that transformers 5 does not read
DELIMITER = {"word_delimiter_token": "E"}
#: options of the pipeline, and seconds of sound
ASKED: list[tuple[dict[str, Any], int]] = [
    ({}, 301),
    ({"return_timestamps": "char"}, 301),
    ({"return_timestamps": "word"}, 301),
    ({"chunk_length_s": 0.01}, 701),
    ({"chunk_length_s": 0.01, "stride_length_s": 0.001}, 701),
    ({"chunk_length_s": 0.011, "stride_length_s": (0.003, 0.0012), "return_timestamps": "word"}, 777),
    ({"chunk_length_s": 0.5, "return_timestamps": "char"}, 99),
]


def speech_checkpoint(into: Path, tokenizer: Mapping[str, Any]) -> Path:
    """A tiny model with CTC, its feature extractor and tokenizer."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(TINY, into, dirs_exist_ok=True)
    weights = load_file(into / "model.safetensors")
    weights["lm_head.bias"] = weights["lm_head.bias"] + np.array(BIASES, np.float32)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    extractor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "return_attention_mask": True}
    (into / "preprocessor_config.json").write_text(json.dumps(extractor))
    # one token less than the model has: its id is unknown
    names = VOCABULARY[:-1] if tokenizer.get("unk_token") == "?" else VOCABULARY
    (into / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(names)}))
    (into / "tokenizer_config.json").write_text(json.dumps({**TOKENIZER, **tokenizer}))
    return into


def inputs() -> list[tuple[str, Any, dict[str, Any]]]:
    """What the first tokenizer is asked: a name, a sound, options."""
    asked: list[tuple[str, Any, dict[str, Any]]] = [
        (f"{samples} samples {options}", sound(samples, seed=9), options) for options, samples in ASKED
    ]
    stereo = np.stack([sound(333), sound(333, seed=1)])
    stride = {"raw": sound(444), "sampling_rate": RATE, "stride": (44, 61), "partial": False, "path": "a"}
    return [
        *asked,
        ("a dictionary of two channels", {"array": stereo, "sampling_rate": RATE, "path": "a"}, {}),
        ("a dictionary with stride and more", stride, {"return_timestamps": "char"}),
        ("several", [sound(200), sound(99, seed=3)], {}),
    ]


def library_answer(folder: Path, task: str, item: Any, options: dict[str, Any]) -> Any:
    import transformers

    pipeline = transformers.pipeline(task, model=str(folder), device="cpu")
    return plain(pipeline(copy.deepcopy(item), **options))


def plain(value: Any) -> Any:
    """An answer without NumPy's types, as JSON keeps it."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def same(ours: Any, theirs: Any, tolerance: float = 2e-5) -> bool:
    """Equal dictionaries; scores to ``tolerance``."""
    if isinstance(theirs, Mapping):
        return set(ours) == set(theirs) and all(same(ours[key], theirs[key], tolerance) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(lambda a, b: same(a, b, tolerance), ours, theirs))
    return bool(abs(ours - theirs) <= tolerance) if isinstance(theirs, float) else bool(ours == theirs)


def cases(work: Path) -> Iterator[Case]:
    import posexport

    for name, tokenizer in {**TOKENIZERS, "delimiter": DELIMITER}.items():
        folder = speech_checkpoint(work / name, tokenizer)
        remarks = posexport.convert(str(folder), work / f"{name}-bundle", verify=False, force=True).remarks
        ours = posexport.pipeline(work / f"{name}-bundle")
        for asked, item, options in inputs() if name == "plain" else inputs()[:3]:
            row = case(f"CTC, tokenizer {name}: {asked}", ours, folder, SPEECH, item, options)
            yield replace(row, remark=" ".join(each for each in remarks if "delimiter" in each))
    if version("transformers") >= "5":  # posexport converts through transformers 5 alone
        yield from _more(work)


def case(asked: str, ours: Any, folder: Path, task: str, item: Any, options: dict[str, Any]) -> Case:
    from transformers import __version__

    theirs, got = library_answer(folder, task, item, options), plain(ours(item, **options))
    return Case(
        part=PART, asked=asked, library=f"transformers {__version__}", ours=got, theirs=theirs, equal=same(got, theirs)
    )


def _more(work: Path) -> Iterator[Case]:
    """Families that only transformers makes, or whose features are frames."""
    import transformers

    import posexport

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
    convolutions = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    raw, frames = transformers.Wav2Vec2FeatureExtractor(), transformers.SeamlessM4TFeatureExtractor()
    spectrogram = transformers.ASTFeatureExtractor(max_length=100, num_mel_bins=32)
    models = {
        "wav2vec2": (
            transformers.Wav2Vec2ForSequenceClassification(
                transformers.Wav2Vec2Config(**sizes, **convolutions, num_labels=7, classifier_proj_size=16)
            ),
            raw,
        ),
        "hubert, regression": (
            transformers.HubertForSequenceClassification(
                transformers.HubertConfig(
                    **sizes, **convolutions, num_labels=3, classifier_proj_size=16, problem_type="regression"
                )
            ),
            raw,
        ),
        "AST, several labels": (
            transformers.ASTForAudioClassification(
                transformers.ASTConfig(
                    **sizes, max_length=100, num_mel_bins=32, num_labels=6, problem_type="multi_label_classification"
                )
            ),
            spectrogram,
        ),
        "wav2vec2-bert, CTC": (
            transformers.Wav2Vec2BertForCTC(transformers.Wav2Vec2BertConfig(**sizes, vocab_size=13, pad_token_id=0)),
            frames,
        ),
    }
    for name, (model, extractor) in models.items():
        folder = drawn(model, work / name.replace(", ", "-").replace(" ", "-"))
        extractor.save_pretrained(folder)
        ctc = name.endswith("CTC")
        if ctc:
            (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(VOCABULARY)}))
            (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
        bundle = folder.with_name(folder.name + "-bundle")
        posexport.convert(str(folder), bundle, verify=False, force=True)
        ours = posexport.pipeline(bundle)
        options: list[dict[str, Any]] = [{}, {"top_k": 2}, {"function_to_apply": "none", "top_k": 99}]
        if ctc:
            options = [{}, {"return_timestamps": "word"}, {"chunk_length_s": 0.4, "return_timestamps": "char"}]
        for each in options:
            # an odd number of frames: the last one has half a frame of padding
            yield case(f"{name} {each}", ours, folder, SPEECH if ctc else CLASSES, sound(9161), each)


def drawn(model: Any, folder: Path, seed: int = 0) -> Path:
    """The checkpoint of a model with large random weights, at which answers differ."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale, middle = (0.3, 0.0) if weight.ndim > 1 else (0.1, float("norm" in name and name.endswith("weight")))
            weight.copy_(middle + scale * torch.randn(weight.shape))
    model.eval().save_pretrained(folder)
    return folder


def golden(into: Path) -> None:
    """What the library answers for the tiny model with CTC, and how it reads logits of classes."""
    import tempfile

    import torch
    import transformers

    kept: dict[str, Any] = {"transformers": transformers.__version__, "ctc": {}, "classes": []}
    with tempfile.TemporaryDirectory() as work:
        for name, tokenizer in TOKENIZERS.items():
            folder = speech_checkpoint(Path(work) / name, tokenizer)
            kept["ctc"][name] = {
                asked: library_answer(folder, SPEECH, item, options)
                for asked, item, options in (inputs() if name == "plain" else inputs()[:3])
            }
        config = transformers.Wav2Vec2Config(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=4,
            num_labels=7,
            num_conv_pos_embedding_groups=2,
        )
        config.id2label = {number: f"class {number}" for number in range(7)}
        model = transformers.Wav2Vec2ForSequenceClassification(config)
        logits = [0.3, -1.25, 2.5, 2.25, -7.0, 0.0, 1.0]
        for problem in ("single_label_classification", "multi_label_classification", "regression"):
            model.config.problem_type = problem
            asking = transformers.AudioClassificationPipeline(
                model, feature_extractor=transformers.Wav2Vec2FeatureExtractor()
            )
            asking.model.forward = lambda **_: transformers.modeling_outputs.SequenceClassifierOutput(
                logits=torch.tensor([logits])
            )
            for options in ({}, {"top_k": 3}, {"top_k": 99, "function_to_apply": "sigmoid"}, {"top_k": None}):
                answer = plain(asking(sound(999), **options))
                kept["classes"].append(
                    {"problem_type": problem, "options": options, "logits": logits, "answer": answer}
                )
    (into / "pipelines.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    golden(ROOT / "tests" / "answers" / "audio")
