"""``vision-<encoding>``: a vision transformer over all patches of an image."""

from posexport.encodings.encoding import Encoding, Entry
from posexport.models.vision import Vision, VisionConfig
from posexport.sources.definitions.kind import Kind

TASKS = {"features": "the hidden states", "image-classification": "logits over labels for an image"}


def _takes(entry: Entry) -> bool:
    """Whether an encoding fits: 2-D, neither causal nor of windows; or `nope`, the control, which has no hooks."""
    cls = entry.cls
    return not cls.hooks or (cls.axes > 1 and not cls.causal and not cls.windowed)


def _sizes(config: VisionConfig) -> dict[str, int]:
    return {
        "hidden": config.hidden,
        "heads": config.heads,
        "head_size": config.layer.head_size,
        "rows": config.rows,
        "columns": config.columns,
        "prefix": config.prefix,
    }


def _make(config: VisionConfig, encoding: Encoding, task: str, labels: int) -> Vision:
    return Vision(config, encoding, labels if task == "image-classification" else None)


VISION = Kind(
    name="vision",
    what="a vision transformer",
    config=VisionConfig,
    defaults={},
    tasks=TASKS,
    takes=_takes,
    sizes=_sizes,
    make=_make,
)
