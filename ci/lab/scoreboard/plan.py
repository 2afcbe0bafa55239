"""The pairs of model type and task that the scoreboard has, in the order in which they run."""

import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent.parent
sys.path.append(str(ROOT / "ci/through"))
from tiny import table  # noqa: E402

#: how a class of transformers ends, and the task, by the names of Hugging Face
_TASKS = {
    "ForMaskedLM": "fill-mask", "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification", "ForQuestionAnswering": "question-answering",
    "ForCausalLM": "text-generation", "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation", "MTModel": "text2text-generation",
    "ForImageClassification": "image-classification", "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "semantic-segmentation", "ForInstanceSegmentation": "image-segmentation",
    "ForUniversalSegmentation": "image-segmentation", "ForImageSegmentation": "image-segmentation",
    "ForDepthEstimation": "depth-estimation", "ForPoseEstimation": "keypoint-detection",
    "ForKeypointDetection": "keypoint-detection", "ForCTC": "automatic-speech-recognition",
    "ForXVector": "audio-xvector", "ForAudioFrameClassification": "audio-frame-classification",
    "ForAudioClassification": "audio-classification", "ForPrediction": "time-series-forecasting",
}  # fmt: skip
#: encoder-decoders of images and of spectrograms, and models that no ending tells
_PREPARED = {
    "VisionEncoderDecoderModel": "image-to-text", "WhisperForConditionalGeneration": "speech-to-text",
    "SamModel": "mask-generation", "Sam2Model": "mask-generation", "DecisionTransformerModel": "reinforcement-learning",
}  # fmt: skip
#: models of two parts with a loop between them, which the judge does not play yet
_UNJUDGED = ("vision-language",)
_UNJUDGED_NAMES = (
    "moonshine", "blip-captions", "timesfm", "imagegpt", "tapas", "seamless_m4t_v2", "superpoint", "timesformer",
    "videomae", "vivit",
)  # fmt: skip


def task(entry: dict[str, Any], group: str) -> str:
    """Hugging Face's task name for the class of an entry."""
    if entry["class"] in _PREPARED:
        return _PREPARED[entry["class"]]
    if entry["class"].startswith(("OwlViT", "Owlv2")):  # objects are named by texts
        return "zero-shot-object-detection"
    fitting = [name for ending, name in _TASKS.items() if entry["class"].endswith(ending)]
    if fitting == ["text-classification"] and group in ("sound", "heads") and "Esm" not in entry["class"]:
        return "audio-classification"
    return fitting[0] if fitting else "feature-extraction"


def groups() -> dict[str, dict[str, Any]]:
    """Entries by family group and name: class, settings and task."""
    grouped: dict[str, dict[str, Any]] = {}
    for file in (ROOT / "ci/lab/scoreboard/defined.yaml", ROOT / "ci/through/checkpoints.yaml"):
        entries = table(file)
        for group, rows in yaml.safe_load(file.read_text()).items():
            if group in _UNJUDGED:
                continue
            for name in rows["checkpoints"]:
                entry = entries[name]
                if name.endswith(("-through", "-live")) or name in _UNJUDGED_NAMES or "timm" in name:
                    continue
                keep = {key: entry[key] for key in ("class", "settings", "narrow", "weights") if key in entry}
                grouped.setdefault(group, {})[name] = {**keep, "task": task(entry, group)}
    return grouped


def pairs() -> dict[str, dict[str, Any]]:
    """Entries by name with their group: the first group, then one of every group in turn."""
    named = ([(name, {**entry, "group": key}) for name, entry in rows.items()] for key, rows in groups().items())
    first, *rest = named
    turns = [pair for turn in zip_longest(*rest) for pair in turn if pair is not None]
    return dict([*first, *turns])
