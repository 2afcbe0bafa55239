"""``audio-<encoding>``: frames of features to a hidden state each, by transformer layers or Conformer blocks."""

from posexport.encodings.encoding import Encoding, Entry
from posexport.models.audio import AudioConfig, AudioEncoder, AudioModel
from posexport.nn.heads import Features, TokenClassification
from posexport.sources.definitions.kind import Kind

TASKS = {
    "features": "the hidden states",
    "ctc": "logits over labels at every frame",
}


def _make(config: AudioConfig, encoding: Encoding, task: str, labels: int) -> AudioModel:
    head = Features(config.hidden) if task == "features" else TokenClassification(config.hidden, labels)
    return AudioModel(AudioEncoder(config, encoding), head)


def _takes(entry: Entry) -> bool:
    return entry.cls.axes == 1 and not entry.cls.causal


def _sizes(config: AudioConfig) -> dict[str, int]:
    return {"hidden": config.hidden, "heads": config.heads, "head_size": config.layer.head_size}


AUDIO = Kind(
    name="audio",
    what="an encoder of audio frames, plain or Conformer",
    config=AudioConfig,
    defaults={"channels": 80, "hidden": 60, "heads": 5, "feedforward": 224, "layers": 2},
    tasks=TASKS,
    takes=_takes,
    sizes=_sizes,
    make=_make,
)
