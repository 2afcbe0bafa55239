"""PX512: token ids of the tokenizer beyond the rows of the embedding."""

from collections.abc import Iterator
from typing import Any

from posexport.graph.dataflow import sources
from posexport.graph.queries import SHAPES, TRUTHS, is_weight
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

_LOOKUPS = ("Gather", "GatherBlockQuantized", "EmbedLayerNormalization")


def _check(subject: Subject) -> Iterator[Place]:
    tokens = [value for value in subject.roles.ids if "token" in (value.name or "") or value.name == "input_ids"]
    if not tokens or (largest := _largest_id(subject.files.object("tokenizer.json"))) is None:
        return
    for node in subject.nodes:
        indices, table = (0, 2) if node.op_type == "EmbedLayerNormalization" else (1, 0)
        axis = node.attributes.get_int("axis", 0)
        if node.op_type not in _LOOKUPS or axis != 0 or len(node.inputs) <= indices:
            continue
        value, weight = node.inputs[indices], node.inputs[table]
        if value is None or weight is None or weight.const_value is None or not is_weight(weight, 2):
            continue
        rows = weight.const_value.shape.numpy()[0]
        # ids themselves: what comparisons or other tables make of them are no ids
        if rows <= largest and any(
            token in sources(value, breaks=SHAPES | TRUTHS | {"Gather", "Mod"}) for token in tokens
        ):
            yield Place(
                f"tokenizer.json has ids up to {largest}, and the table {weight.name!r} that {tokens[0].name!r} reads "
                f"has {rows} rows",
                [node],
            )


def _largest_id(tokenizer: Any) -> int | None:
    """The largest id that a text may get; None if the file has no vocabulary."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: list[int] = []
    if isinstance(vocabulary, dict):
        ids = [value for value in vocabulary.values() if isinstance(value, int)]
    elif isinstance(vocabulary, list):  # of Unigram: pieces with scores
        ids = [len(vocabulary) - 1]
    added = tokenizer.get("added_tokens")
    if isinstance(added, list):
        ids += [entry["id"] for entry in added if isinstance(entry, dict) and isinstance(entry.get("id"), int)]
    return max(ids, default=None)


RULE = Rule(
    code="PX512",
    name="short-vocabulary",
    severity="error",
    finds="the tokenizer has ids for which the graph's embedding has no row",
    why="A text with such a token fails on the CPU; CUDA and WebGPU read whatever is in memory behind the table.",
    remedy="Take the tokenizer of this model, or resize the embeddings (resize_token_embeddings) before the export.",
    check=_check,
    reads="folder",
    files={"tokenizer.json": '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "c": 2}}, "added_tokens": []}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        short (int64[B, T] input_ids) => (float[B, T, 2] y)
        <float[2, 2] words = {1.0, 2.0, 3.0, 4.0}>
        { y = Gather (words, input_ids) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        whole (int64[B, T] input_ids) => (float[B, T, 2] y)
        <float[3, 2] words = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Gather (words, input_ids) }
    """,
)
