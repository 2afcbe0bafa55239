"""Lost tensors by module: a head that the task leaves out, a layer, a weight in a layer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posexport.tools.audit.finding import Severity
from posexport.tools.audit.ledger.ledger import Ledger
from posexport.tools.audit.ledger.profiles import Item

#: modules on top of a model, which graphs of other tasks leave out
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
#: names in what computes with positions alone
_OF_POSITIONS = re.compile(r"pos|(^|[._])rel(ative)?_|(^|[._])r(_|$|\.)|seg_embed|bias_table|_bias_mlp")
#: heads that compute the output ``logits``
_LOGITS = frozenset(["lm_head", "classifier", "score", "qa_outputs", "embed_out", "proj_out"])


@dataclass(frozen=True)
class Lost:
    """Tensors of one module that the graph has nothing of.

    Attributes:
        module: the outermost module of which every tensor is lost; a tensor's name where its siblings are in the graph.
        tensors: the tensors.
        severity: note, where graphs of other tasks leave the module out.
        folded: a table of the graph may have been computed with them.
    """

    module: str
    tensors: Sequence[Item]
    severity: Severity
    folded: bool = False


def lost(ledger: Ledger, ports: Sequence[str]) -> Iterator[Lost]:
    """The lost tensors, one record for each module; ``ports``: names of the graph's inputs and outputs."""
    relative = ledger.config.get("position_embedding_type", "absolute") != "absolute"
    kept = [entry.name for entry in ledger.entries if not entry.plain] + [other.name for other in ledger.differing]
    inside = {prefix for name in kept for prefix in _parents(name)}
    modules: dict[str, list[Item]] = {}
    for item in ledger.lost:
        # the outermost module that has no tensor in the graph
        module = next((prefix for prefix in _parents(item.name) if prefix not in inside), item.name)
        modules.setdefault(module, []).append(item)
    for module, items in modules.items():
        folded = all(_may_be_folded(item, ledger.unmatched) for item in items)
        # models with relative positions have a table of absolute ones that nothing reads
        unread = relative and module.endswith(("position_embeddings", "position_embeddings.weight"))
        twice = module.endswith("predictions.bias") and module.replace("bias", "decoder.bias") in kept
        in_convolution = module in ledger.batch_norms and any(entry.how == "folded" for entry in ledger.entries)
        note = folded or in_convolution or unread or twice or _is_left_out(module, ports)
        yield Lost(module, items, "note" if note else "error", folded)


def _may_be_folded(item: Item, unmatched: Sequence[Item]) -> bool:
    """Whether a table that is none of the checkpoint's may have been computed with ``item``, such as projected rows.

    Only what depends on positions alone is the same in every call.
    """
    return bool(unmatched) and bool(_OF_POSITIONS.search(item.name))


def _is_left_out(module: str, ports: Sequence[str]) -> bool:
    """Whether ``module`` is a head of another task, one side of a model of several, or belongs to a missing input."""
    parts = module.split(".")
    if any(part in _LOGITS for part in parts):
        return "logits" not in ports
    if "pooler" in parts:
        return "pooler_output" not in ports
    if kind := next((part.split("_embed")[0] for part in parts if "type_embed" in part), ""):
        return not any(kind in port for port in ports)  # one row of it, added to another table
    # a whole tower at the top: the graph is the other one
    at_top = not any(part.isdigit() for part in parts) and len(parts) <= 2
    towers = ("vision", "visual", "audio", "speech", "text", "language", "image")
    return at_top and (bool(_HEADS & set(parts)) or any(word in parts[-1] for word in towers))


def _parents(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def names(items: Sequence[Item]) -> str:
    """Names of tensors for a sentence: one, or what they share and how many they are."""
    if len(items) == 1:
        return f"{items[0].name} {list(items[0].shape)}"
    shared = set.intersection(*(set(_parents(item.name)) for item in items))
    return f"{max(shared, key=len, default=items[0].name + ' ..')} ({len(items)} tensors)"
