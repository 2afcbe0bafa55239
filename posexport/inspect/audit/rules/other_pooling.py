"""PX507: another pooling than modules.json configures."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.analyses.pooling import pooled, vectors
from posexport.inspect.audit.reading.folder import Folder
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

_FLAG = "pooling_mode_"
#: modes of sentence-transformers that are sums along the tokens
_SUMS = ("mean", "mean_sqrt_len_tokens", "weightedmean")


def _check(subject: Subject) -> Iterator[Place]:
    modes = _modes(subject.files)
    if len(modes) != 1:
        return  # none, or vectors of several side by side
    (mode,) = modes
    outputs = vectors(subject.graph, subject.sizes)
    for output in outputs:
        tail = pooled(output, subject.roles, subject.sizes)
        if tail is None:
            continue
        where: list[ir.Node | str] = [tail.node, output.name or ""]
        if tail.kind != ("mean" if mode in _SUMS else mode):
            yield Place(
                f"output {output.name!r} is the {tail.kind} of the tokens, and modules.json configures {mode}", where
            )
        elif not tail.masked:
            yield Place(
                f"output {output.name!r} is the mean of all rows, padding too: {tail.node.op_type} does not read "
                "attention_mask",
                where,
            )
    if not outputs and (states := _states(subject)):
        yield Place(
            f"the graph returns {states!r}, a vector for each token, and leaves pooling ({mode}) to the client",
            [states],
            severity="note",
            remedy=f"Pool as modules.json says ({mode}); sentence-transformers does, other clients may not.",
        )


def _modes(files: Folder) -> list[str]:
    """The poolings that modules.json configures."""
    folder = next((folder for name, folder in files.modules if name == "Pooling"), None)
    if folder is None:
        return []
    config = files.object(f"{folder}/config.json")
    if isinstance(named := config.get("pooling_mode"), str | list):
        return [named] if isinstance(named, str) else [mode for mode in named if isinstance(mode, str)]
    chosen = [key.removeprefix(_FLAG) for key, value in config.items() if key.startswith(_FLAG) and value is True]
    return [
        mode if mode == "mean_sqrt_len_tokens" else mode.removesuffix("_tokens").removesuffix("_token")
        for mode in chosen
    ]


def _states(subject: Subject) -> str | None:
    """The output with hidden states, if the graph takes tokens."""
    names = [value.name or "" for value in subject.graph.outputs]
    known = [name for name in names if name in ("last_hidden_state", "token_embeddings", "hidden_states")]
    return known[0] if known and subject.roles.ids else None


RULE = Rule(
    code="PX507",
    name="other-pooling",
    severity="error",
    finds="the graph's embedding is pooled otherwise than modules.json says",
    why="Vectors have the right size and another meaning: similarities are wrong without an error, and an index that "
    "was made by the source's library does not fit.",
    remedy="Export the model with the pooling of modules.json, or correct 1_Pooling/config.json if the graph is right.",
    check=_check,
    reads="folder",
    files={
        "modules.json": '[{"type": "sentence_transformers.models.Transformer", "path": ""},'
        ' {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]',
        "1_Pooling/config.json": '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}',
    },
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        mean (float[B, T, 6] states, int64[B, T] attention_mask) => (float[B, 6] sentence_embedding)
        <int64[1] one = {1}, int64[1] last = {2}>
        {
            mask = Cast <to = 1> (attention_mask)
            weights = Unsqueeze (mask, last)
            kept = Mul (states, weights)
            total = ReduceSum <keepdims = 0> (kept, one)
            count = ReduceSum <keepdims = 0> (weights, one)
            sentence_embedding = Div (total, count)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        cls (float[B, T, 6] states, int64[B, T] attention_mask) => (float[B, 6] sentence_embedding)
        <int64 zero = {0}>
        { sentence_embedding = Gather <axis = 1> (states, zero) }
    """,
)
