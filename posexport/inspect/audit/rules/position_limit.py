"""PX503: config.json or the tokenizer promises more positions than the graph's table has."""

from collections.abc import Iterator, Mapping

from posexport.inspect.audit.analyses.described import whole
from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject

#: values beyond which a tokenizer truncates nothing: transformers writes 10^30 for "not known"
_NO_LIMIT = 10**6


def _check(subject: Subject) -> Iterator[Place]:
    width = whole(subject.config, "embedding_size", "hidden_size", "n_embd", "dim", "d_model")
    tables = [
        lookup
        for lookup in lookups(subject.nodes, subject.roles, subject.sizes)
        # tables of distances have other widths; a bundle's guard refuses what it has no row for
        if width in (None, (subject.sizes.of(lookup.table) or (None,))[-1])
        and not (lookup.bounded and subject.by_posexport)
    ]
    if not tables or not subject.config:
        return
    shortest = min(tables, key=lambda lookup: lookup.rows)
    # positions from a count of the mask (RoBERTa) begin behind the padding id
    offset = (whole(subject.config, "pad_token_id") or 0) + 1 if shortest.origin == "count" else 0
    for name, key, limit in _limits(subject):
        rows = shortest.rows if name == "config.json" else shortest.rows - offset
        if limit > rows:
            yield Place(
                f"{name} says {key} = {limit}, and table {shortest.table.name!r} has rows for {rows} positions",
                [name_of(shortest.node)],
            )


def _limits(subject: Subject) -> Iterator[tuple[str, str, int]]:
    """File, key and value of what promises a length."""
    tokenizer: Mapping[str, object] = subject.files.object("tokenizer_config.json")
    sentence: Mapping[str, object] = subject.files.object("sentence_bert_config.json")
    for name, content, key in (
        ("config.json", subject.config, "max_position_embeddings"),
        ("tokenizer_config.json", tokenizer, "model_max_length"),
        ("sentence_bert_config.json", sentence, "max_seq_length"),
    ):
        limit = whole(content, key)
        if limit is not None and limit < _NO_LIMIT:
            yield name, key, limit


RULE = Rule(
    code="PX503",
    name="position-limit",
    severity="warning",
    finds="config.json or the tokenizer promises a length for which the graph has no positions",
    why="The tokenizer does not truncate to what the graph can compute: longer texts fail, and on CUDA and WebGPU they "
    "get embeddings of whatever is in memory behind the table.",
    remedy="Set model_max_length (max_seq_length) to the rows of the table, or export the model with all positions.",
    check=_check,
    reads="folder",
    files={"config.json": '{"max_position_embeddings": 4}', "tokenizer_config.json": '{"model_max_length": 4}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        short (int64[B, T] input_ids) => (float[T, 2] y)
        <float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, int64 zero = {0}, int64 one = {1}, int64 last = {2}>
        {
            length = Shape <start = 1, end = 2> (input_ids)
            end = Squeeze (length)
            range = Range (zero, end, one)
            positions = Min (range, last)
            y = Gather (table, positions)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        whole (int64[B, T] input_ids) => (float[T, 2] y)
        <float[4, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, int64 zero = {0}, int64 one = {1},
         int64 last = {3}>
        {
            length = Shape <start = 1, end = 2> (input_ids)
            end = Squeeze (length)
            range = Range (zero, end, one)
            positions = Min (range, last)
            y = Gather (table, positions)
        }
    """,
)
