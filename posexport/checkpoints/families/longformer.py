"""Longformer: a window of attention per layer, tokens with global attention, positions counted after the padding id.

Where ``global_attention_mask`` marks nothing in a row, a classifier's first token is marked, and the question (all
before the first separator) in question answering, as transformers does where it gets no mask. It then demands three
separators in every row; here a row without any has no question, and any positive number is accepted.
"""

import torch

from posexport.checkpoints.config import LARGEST, Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.families.bert import EMBEDDINGS, POSITIONS, POST_NORM, SUBLAYERS
from posexport.checkpoints.families.roberta import CLASSIFIER, FILL_MASK, HEADS
from posexport.checkpoints.mapping import Plan
from posexport.errors import PosexportError
from posexport.models.longformer import Default, Longformer, LongformerModel

_DEFAULTS: dict[str, Default] = {"sequence-classification": "first", "question-answering": "question"}
_QKV = ("attention.query", "attention.key", "attention.value")
_NAMES = encoder.Names(
    prefix="longformer",
    once=EMBEDDINGS | POSITIONS,
    layer=SUBLAYERS | POST_NORM | {f"{name}_global": f"{SUBLAYERS[name]}_global" for name in _QKV},
    fill_mask=FILL_MASK,
    classifier=CLASSIFIER,
)


def _build(config: Config, task: str) -> Plan:
    settings = encoder.settings(config, padding_id=1, after_padding=True)
    encoding, windows = encoder.absolute(config, settings, after_padding=True), _windows(config, settings.layers)
    with torch.device("meta"):
        model = LongformerModel(
            Longformer(settings, encoding, windows),
            encoder.head(config, task, _NAMES, settings),
            default=_DEFAULTS.get(task, "none"),
            separator=config.size("sep_token_id", 2, least=0),
        )
    origins, unread = encoder.named(config, model, _NAMES, "encoder.layers", settings.layers)
    return Plan(model, origins, unread=unread)


def _windows(config: Config, layers: int) -> list[int]:
    stated = config.values.get("attention_window", 512)
    windows = stated if isinstance(stated, list) else [stated] * layers
    fit = all(isinstance(w, int) and not isinstance(w, bool) and 2 <= w <= LARGEST and w % 2 == 0 for w in windows)
    if not fit or len(windows) != layers:
        raise PosexportError(
            f"{config.label} says attention_window = {stated!r:.60}; it must be an even number from 2 on, or a list of "
            f"num_hidden_layers = {layers} of them"
        )
    return windows


LONGFORMER = encoder.family(
    "longformer",
    _build,
    "longformer",
    roots=("embeddings.", "encoder.", "pooler."),
    pooler="pooler.dense",
    architectures={end: task for end, task in encoder.ARCHITECTURES.items() if end != "ForPreTraining"},
    other_heads=HEADS,
)
