"""The number of labels of a classification head where ``num_labels`` and ``id2label`` of config.json differ.

Early versions of transformers wrote both. Version 5 follows ``num_labels`` and calls the labels LABEL_0 and so
on; the head's weight decides here, as a head of another size cannot be loaded.
"""

from collections import Counter

import msgspec

from posexport.checkpoints.config import Config
from posexport.checkpoints.opened import Checkpoint
from posexport.sources.source import Model


def by_weight(checkpoint: Checkpoint) -> int | None:
    """The one of the two counts that the head's weight has; None if they do not differ, or no weight has one.

    The head is what lies outside of the part that most tensors belong to.
    """
    if (counts := _differing(checkpoint.config)) is None:
        return None
    shapes = checkpoint.weights.shapes
    body, _ = Counter(name.partition(".")[0] for name in shapes).most_common(1)[0]
    rows = {shape[0] for name, shape in shapes.items() if len(shape) > 1 and name.partition(".")[0] != body}
    return next((count for count in counts if count in rows), None)


def with_names(model: Model, config: Config, count: int | None) -> Model:
    """A classifier with names for ``count`` labels (`by_weight`) and a remark; any other model as it is."""
    if (counts := _differing(config)) is None or count is None or not model.task.endswith("classification"):
        return model
    unnamed = count != counts[1]
    called = f", called LABEL_0 to LABEL_{count - 1} as in transformers" if unnamed else ""
    remark = (
        f"{config.label} says num_labels = {counts[0]}, and id2label names {counts[1]}; the head's weight has {count} "
        f"labels{called}"
    )
    labels = [f"LABEL_{number}" for number in range(count)] if unnamed else []
    return msgspec.structs.replace(model, labels=labels, remarks=[*model.remarks, remark])


def _differing(config: Config) -> tuple[int, int] | None:
    """``num_labels`` and the number of names in ``id2label``, if both are stated and differ."""
    count, names = config.values.get("num_labels"), config.values.get("id2label")
    if not isinstance(count, int) or isinstance(count, bool) or not isinstance(names, dict) or len(names) == count:
        return None
    return count, len(names)
