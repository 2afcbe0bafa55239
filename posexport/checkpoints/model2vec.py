"""Makes the model of a model2vec folder: a table of vectors with weights and clusters, and a head."""

from collections.abc import Mapping
from typing import Any

import msgspec
from torch import Tensor, nn

from posexport.checkpoints import model2vec_folder as folder
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.weights import Weights
from posexport.errors import PosexportError
from posexport.models.static import StaticEmbedding
from posexport.sources.source import Model, model_of

_EMBEDDING, _SCORES = "sentence-embedding", "sequence-classification"
#: of the head, and whether its outputs are logits of labels
_ACTIVATIONS = {"softmax": True, "sigmoid": True, "identity": False}


def make(checkpoint: Checkpoint) -> Model:
    """The table and the head with their weights.

    Raises:
        PosexportError: another task, tensors that do not fit, or a head in the format before version 0.10.
    """
    files, config = checkpoint.files, checkpoint.config
    head = folder.head_of(config)
    activation = head.get("activation", "identity")
    if activation not in _ACTIVATIONS:
        raise PosexportError(f"{config.label} says activation = {activation!r:.60}; known: {', '.join(_ACTIVATIONS)}")
    task = _task(checkpoint, scores=bool(head) and _ACTIVATIONS[activation])
    has_head = bool(head) and (task == _SCORES or not _ACTIVATIONS[activation])
    table_VC = _table(checkpoint.weights)
    layers = _layers(checkpoint, head, table_VC.shape[1]) if has_head else []
    words, width = table_VC.shape
    model = StaticEmbedding(
        words,
        width,
        "logits" if task == _SCORES else "sentence_embedding",
        unknown=folder.unknown_of(files),
        normalised=config.flag("normalize", False),
        head=[len(bias) for _, bias in layers],
    )
    model.table.weight = nn.Parameter(table_VC, requires_grad=False)
    for layer, (weight, bias) in zip(model.head, layers, strict=True):
        layer.weight, layer.bias = (nn.Parameter(part, requires_grad=False) for part in (weight, bias))
    rules = folder.text_rules(files, config)
    return msgspec.structs.replace(model_of(model.eval(), task), text_rules=None if task == _SCORES else rules)


MAKER = Maker("huggingface", make)


def _task(checkpoint: Checkpoint, *, scores: bool) -> str:
    task, label = checkpoint.task, checkpoint.config.label
    known = [_SCORES, _EMBEDDING] if scores else [_EMBEDDING]
    if task not in (None, *known):
        raise PosexportError(f"{label}: model2vec has no task {task}; it has {', '.join(known)}")
    legacy = checkpoint.files.find(folder.LEGACY) is not None and checkpoint.files.find(folder.HEAD) is None
    if legacy and task is None:
        raise PosexportError(
            f"{checkpoint.files.path} has its classifier as {folder.LEGACY}, scikit-learn objects, which are not read; "
            "save it again with model2vec 0.10 (StaticModelPipeline.from_pretrained(DIR).save_pretrained(DIR)), or "
            "choose --task sentence-embedding"
        )
    return task or known[0]


def _table(weights: Weights) -> Tensor:
    """A row for each token: the row of its cluster (``mapping``) times its weight (``weights``), in float32."""
    if "embeddings" not in weights.shapes:
        raise PosexportError(f"{weights.label} has no tensor embeddings, as model2vec saves it; download it again")
    table_VC = weights.read("embeddings").double()
    if "mapping" in weights.shapes:
        mapping_V = weights.read("mapping", integers=True).long()
        if mapping_V.dim() != 1 or not bool(((mapping_V >= 0) & (mapping_V < len(table_VC))).all()):
            raise PosexportError(f"{weights.label}: mapping names rows that embeddings lacks; download it again")
        table_VC = table_VC[mapping_V]
    if "weights" in weights.shapes:
        weight_V = weights.read("weights").double()
        if weight_V.shape != table_VC.shape[:1]:
            raise PosexportError(f"{weights.label}: weights are {list(weight_V.shape)}, for {len(table_VC)} tokens")
        table_VC = table_VC * weight_V[:, None]
    return table_VC.float()


def _layers(checkpoint: Checkpoint, head: Mapping[str, Any], width: int) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer of head.safetensors, whose sizes fit."""
    files = checkpoint.files
    if files.find(folder.HEAD) is None:
        raise PosexportError(f"{checkpoint.config.label} has a head_config, and there is no {folder.HEAD}; download it")
    weights, layers = checkpoint.weights, []
    for number in range(head.get("n_layers", 0)):
        names = [f"{folder.HEAD}/head.{number}.{leaf}" for leaf in ("weight", "bias")]
        shapes = [weights.shapes.get(name, []) for name in names]
        if len(shapes[0]) != 2 or shapes[0][1] != width or shapes[1] != shapes[0][:1]:
            raise PosexportError(f"{weights.label}: {' and '.join(names)} are {shapes}, for an input of {width}")
        layers.append((weights.read(names[0]).float(), weights.read(names[1]).float()))
        width = shapes[0][0]
    classes = head.get("classes")
    if classes is not None and len(classes) != width:
        raise PosexportError(f"{checkpoint.config.label} names {len(classes)} classes; the head has {width}")
    return layers
