"""PX509: a causal language model published as an embedder."""

from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: outputs from which a client pools
_STATES = ("hidden", "embed", "pool", "vector", "feature")


def _check(subject: Subject) -> Iterator[Place]:
    names = [(value.name or "") for value in subject.graph.outputs]
    # a cross-encoder's modules end in scores, and its logits are these
    modules = [name for name, _ in subject.files.modules]
    if "Pooling" not in modules or "logits" not in names:
        return
    if any(word in name.lower() for name in names for word in _STATES):
        return
    architectures = subject.files.object("config.json").get("architectures")
    shape = subject.sizes.of(next(value for value in subject.graph.outputs if value.name == "logits"))
    if len(shape or ()) != 3 and not _is_causal(architectures):
        return
    named = f", and config.json says {architectures[0]}" if isinstance(architectures, list) and architectures else ""
    yield Place(
        f"modules.json pools hidden states, which the graph does not return: its outputs are {', '.join(names[:3])}"
        f"{named}",
        ["logits"],
    )


def _is_causal(architectures: object) -> bool:
    return isinstance(architectures, list) and any(str(name).endswith("ForCausalLM") for name in architectures)


RULE = Rule(
    code="PX509",
    name="causal-embedder",
    severity="error",
    finds="an embedder's repository whose graph is the language model: logits and caches, no hidden states",
    why="Clients pool the first output: a vector of scores for each word in place of an embedding.",
    remedy="Export the model without its language model head: the task is feature-extraction, or "
    "sentence-embedding with posexport convert.",
    check=_check,
    reads="folder",
    files={
        "config.json": '{"architectures": ["Qwen3ForCausalLM"]}',
        "modules.json": '[{"type": "sentence_transformers.models.Transformer", "path": ""},'
        ' {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]',
        "1_Pooling/config.json": '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
    },
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        head (float[B, T, 6] inputs_embeds) => (float[B, T, 6] logits)
        { logits = Abs (inputs_embeds) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        states (float[B, T, 6] inputs_embeds) => (float[B, T, 6] last_hidden_state)
        { last_hidden_state = Abs (inputs_embeds) }
    """,
)
