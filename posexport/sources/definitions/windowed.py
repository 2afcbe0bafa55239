"""``vision-swin``, ``vision-swinv2``: attention inside the windows of an image, in the arrangement of each paper."""

from posexport.encodings.encoding import Encoding
from posexport.models.windowed import Windowed
from posexport.models.windowed_block import WindowedConfig
from posexport.sources.definitions.kind import Kind

TASKS = {"features": "the hidden states", "image-classification": "logits over labels for an image"}


def _make(config: WindowedConfig, encoding: Encoding, task: str, labels: int) -> Windowed:
    encodings = [
        encoding.sized(window=config.window_of(stage), heads=heads) for stage, heads in enumerate(config.heads)
    ]
    return Windowed(config, encodings, labels if task == "image-classification" else None)


def _sizes(config: WindowedConfig) -> dict[str, int]:
    head_size = config.hidden // config.heads[0]
    return {"hidden": config.hidden, "heads": config.heads[0], "head_size": head_size, "window": config.window}


SWIN = Kind(
    name="vision",
    what="a vision model with shifted windows",
    config=WindowedConfig,
    defaults={},
    tasks=TASKS,
    takes=lambda entry: entry.cls.windowed and not entry.cls.cosine_scores,
    sizes=_sizes,
    make=_make,
)
SWINV2 = Kind(
    name="vision",
    what="a vision model with shifted windows, cosine attention and normalisation after each sublayer",
    config=WindowedConfig,
    # what scores a pair may be joined to by a shift: more than cosines and biases can make up for
    defaults={"norm": "res-post", "cosine": True, "dropped": -200.0},
    tasks=TASKS,
    takes=lambda entry: entry.cls.windowed and entry.cls.cosine_scores,
    sizes=_sizes,
    make=_make,
)
