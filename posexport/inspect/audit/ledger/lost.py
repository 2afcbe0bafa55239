"""Groups lost tensors (of the checkpoint, missing in the graph) by module: a head, a layer, a single weight."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posexport.inspect.audit.finding import Severity
from posexport.inspect.audit.ledger.ledger import Ledger
from posexport.inspect.audit.ledger.profiles import Item

#: heads and other modules on top of a model; the graph of another task has none of their tensors
_HEADS = frozenset(
    [
        *(
            "pooler",
            "lm_head",
            "cls",
            "classifier",
            "score",
            "qa_outputs",
            "embed_out",
            "predictions",
            "vocab_projector",
        ),
        *("vocab_transform", "vocab_layer_norm", "seq_relationship", "pre_classifier", "discriminator_predictions"),
        *("generator_predictions", "generator_lm_head", "text_projection", "visual_projection", "final_logits_bias"),
        *("projector", "quantizer", "project_q", "project_hid", "mtp", "head", "decoder", "encoder", "proj_out"),
        *(
            "contact_head",
            "embed_positions_head",
            "sop_classifier",
            "mask_loss",
            "answer_class",
            "final_char_encoder",
            "projection",
        ),
    ]
)
#: matches names of tensors from which only tables of positions are computed
_OF_POSITIONS = re.compile(r"pos|(^|[._])rel(ative)?_|(^|[._])r(_|$|\.)|seg_embed|bias_table|_bias_mlp")
#: heads that compute the output ``logits``
_LOGITS = frozenset(["lm_head", "classifier", "score", "qa_outputs", "embed_out", "proj_out"])


@dataclass(frozen=True)
class Lost:
    """Lost tensors of one module.

    Attributes:
        module: the outermost module that has lost all its tensors. If other tensors of the same module are in the
            graph, the name of the tensor.
        tensors: the lost tensors.
        severity: note if graphs of other tasks do not need the module.
        folded: whether a table in the graph may have been computed from these tensors.
    """

    module: str
    tensors: Sequence[Item]
    severity: Severity
    folded: bool = False


def lost(ledger: Ledger, io_names: Sequence[str]) -> Iterator[Lost]:
    """Yield the lost tensors, one record per module; ``io_names``: names of the graph's inputs and outputs."""
    relative = ledger.config.get("position_embedding_type", "absolute") != "absolute"
    present = [entry.name for entry in ledger.entries if not entry.plain] + [other.name for other in ledger.differing]
    inside = {prefix for name in present for prefix in _parents(name)}
    modules: dict[str, list[Item]] = {}
    for item in ledger.lost:
        # the outermost module without a tensor in the graph
        module = next((prefix for prefix in _parents(item.name) if prefix not in inside), item.name)
        modules.setdefault(module, []).append(item)
    for module, items in modules.items():
        folded = all(_may_be_folded(item, ledger.unmatched) for item in items)
        # models with relative positions also store a table of absolute positions, which they do not use
        unread = relative and module.endswith(("position_embeddings", "position_embeddings.weight"))
        twice = module.endswith("predictions.bias") and module.replace("bias", "decoder.bias") in present
        in_convolution = module in ledger.batch_norms and any(entry.how == "folded" for entry in ledger.entries)
        note = folded or in_convolution or unread or twice or _is_left_out(module, io_names)
        yield Lost(module, items, "note" if note else "error", folded)


def _may_be_folded(item: Item, unmatched: Sequence[Item]) -> bool:
    """Whether a table in the graph, which is not in the checkpoint, may have been computed from ``item``.

    Only tensors that are combined with positions alone can be folded into a table, for example by a projection.
    """
    return bool(unmatched) and bool(_OF_POSITIONS.search(item.name))


def _is_left_out(module: str, io_names: Sequence[str]) -> bool:
    """Whether ``module`` is the head of another task, another tower of the model, or needs an input that is missing."""
    path = module.split(".")
    if any(name in _LOGITS for name in path):
        return "logits" not in io_names
    if "pooler" in path:
        return "pooler_output" not in io_names
    if kind := next((name.split("_embed")[0] for name in path if "type_embed" in name), ""):
        # without the input, one row of the table is added to another table
        return not any(kind in name for name in io_names)
    # the graph of one tower lacks the other tower at the top of the model
    at_top = not any(name.isdigit() for name in path) and len(path) <= 2
    towers = ("vision", "visual", "audio", "speech", "text", "language", "image")
    return at_top and (bool(_HEADS & set(path)) or any(word in path[-1] for word in towers))


def _parents(name: str) -> list[str]:
    """The names of the modules that contain a tensor, the outermost first."""
    path = name.split(".")
    return [".".join(path[:end]) for end in range(1, len(path))]


def names(items: Sequence[Item]) -> str:
    """Tensor names for a message: one name with its shape, or the common module and the number of tensors."""
    if len(items) == 1:
        return f"{items[0].name} {list(items[0].shape)}"
    shared = set.intersection(*(set(_parents(item.name)) for item in items))
    return f"{max(shared, key=len, default=items[0].name + ' ..')} ({len(items)} tensors)"
