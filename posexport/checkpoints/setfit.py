"""Reads the folder of a SetFit model: a classifier on the vector of a text.

Tunstall et al., "Efficient Few-Shot Learning Without Prompts" (arXiv:2209.11055). SetFit saves the classifier as a
pickle of a whole object, which is never read; its weights are read from model_head.safetensors, or from model_head.pt
where pickles of tensors are allowed, by the names of ``SetFitHead``.
"""

from dataclasses import replace

from posexport.checkpoints import sentence_transformers
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.pooling import Pooling, Step
from posexport.checkpoints.text_rules import optional
from posexport.checkpoints.weights import open_file
from posexport.errors import PosexportError
from posexport.nn.pooling import DenseConfig

SETTINGS, PICKLE = "config_setfit.json", "model_head.pkl"
SAFETENSORS, TENSORS = "model_head.safetensors", "model_head.pt"
_ADVICE = (
    f"save its weights as {SAFETENSORS} with linear.weight and linear.bias (docs/rerankers.md has the lines for it), "
    "or choose --task sentence-embedding for the embedder alone"
)


def read(files: Directory, *, allow_pickle: bool) -> Pooling | None:
    """The pooling, and the projection of its vectors to labels; None for a folder that SetFit did not save.

    Raises PosexportError for a classifier that is a pickle alone, or that does not fit the embedder.
    """
    settings = optional(files, SETTINGS)
    if settings is None and files.find(PICKLE) is None:
        return None
    names = [name for name in (SAFETENSORS, TENSORS if allow_pickle else "") if name and files.find(name) is not None]
    if not names:
        if files.find(PICKLE) is None and files.find(TENSORS) is None:
            return None
        pickle = PICKLE if files.find(TENSORS) is None else f"{TENSORS} (--allow-pickle reads it)"
        raise PosexportError(
            f"{files.path} has the classifier of SetFit as {pickle}, a pickle, which can run code; {_ADVICE}"
        )
    return _with_classifier(sentence_transformers.read(files), files, names[0], settings)


def _with_classifier(pooling: Pooling, files: Directory, name: str, settings: Config | None) -> Pooling:
    shapes, label = open_file(files, name).shapes, f"{files.path}/{name}"
    shape = shapes.get("linear.weight", [])
    if len(shape) != 2 or shape[0] < 2 or {*shapes} != {"linear.weight", "linear.bias"}:
        raise PosexportError(
            f"{label} has {', '.join(f'{key} {size}' for key, size in shapes.items())}, and needed are linear.weight "
            "[labels, elements], of two labels or more, and linear.bias [labels]; docs/rerankers.md has the lines that "
            "write them"
        )
    if pooling.rules.tokens is not None or pooling.splade is not None or not pooling.rules.prompt_pooled:
        raise PosexportError(f"{label}: a classifier is read behind a plain pooling of texts only; {_ADVICE}")
    dense = [step.dense for step in pooling.steps if step.dense is not None]
    width = dense[-1].outer if dense else pooling.width * len(pooling.modes)
    if shape[1] != width:
        raise PosexportError(f"{label} reads {shape[1]} elements, and vectors of texts have {width}; {_ADVICE}")
    normalises = settings is not None and settings.flag("normalize_embeddings", False)
    head = Step(dense=DenseConfig(inner=width, outer=shape[0]), folder=f"{name}/")
    return replace(
        pooling,
        steps=[*pooling.steps, *([Step(dense=None)] if normalises else []), head],
        scores=True,
        weight_files=(name,),
        replaced_files=(PICKLE, SAFETENSORS, TENSORS),
        labels=_labels(settings, shape[0]),
        files=[*pooling.files, *([] if settings is None else [SETTINGS])],
    )


def _labels(settings: Config | None, count: int) -> list[str]:
    """The names in config_setfit.json; SetFit's numbers of labels where it has none."""
    names = None if settings is None else settings.values.get("labels")
    if names is None:
        return [str(number) for number in range(count)]
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise PosexportError(
            f"{SETTINGS} says labels = {names!r:.80}, and the classifier has {count} labels; list their names"
        )
    return names
