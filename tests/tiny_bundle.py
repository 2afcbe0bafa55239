"""A bundle small enough to know by heart, with a guard at 11 tokens.

``last_hidden_state[b, t] = (table[ids[b, t]] + 100 * types[b, t]) * mask[b, t]``; ``sentence_embedding``: its mean.
"""

import json
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper, parser

from posexport.base.options.recipe import Recipe
from posexport.base.spec import EncodingSpec, InputSpec, Limits, OutputSpec
from posexport.run.bundle.manifest import Manifest, ParitySummary, SourceInfo
from posexport.run.bundle.write import seal, staged

VOCAB, WIDTH, LIMIT = 13, 3, 11
TABLE = np.sin(np.arange(VOCAB * WIDTH, dtype=np.float32)).reshape(VOCAB, WIDTH)
GRAPH = """<ir_version: 10, opset_import: ["" : 18]>
tiny (int64[batch_size, sequence_length] input_ids, int64[batch_size, sequence_length] attention_mask,
      int64[batch_size, sequence_length] token_type_ids)
  => (float[batch_size, sequence_length, 3] last_hidden_state, float[batch_size, 3] sentence_embedding)
<int64[1] limit = {11}, float hundred = {100}, int64[1] last = {2}, int64[1] middle = {1}>
{
  lead = Shape<end = 1>(input_ids)
  length = Shape<start = 1>(input_ids)
  over = Greater(length, limit)
  bump = Cast<to = 7>(over)
  bumped = Add(length, bump)
  target = Concat<axis = 0>(lead, bumped)
  guarded = Reshape<allowzero = 1>(input_ids, target)
  token = Gather(table, guarded)
  type = Cast<to = 1>(token_type_ids)
  scaled = Mul(type, hundred)
  scaled3 = Unsqueeze(scaled, last)
  typed = Add(token, scaled3)
  mask = Cast<to = 1>(attention_mask)
  mask3 = Unsqueeze(mask, last)
  last_hidden_state = Mul(typed, mask3)
  sentence_embedding = ReduceMean<keepdims = 0>(last_hidden_state, middle)
}"""
AXES: list[str | int] = ["batch_size", "sequence_length"]
MANIFEST = Manifest(
    posexport="0.1.0",
    source=SourceInfo(name="tiny", kind="builtin", sha256="0" * 64),
    task="feature-extraction",
    encoding=EncodingSpec(name="nope", parameters={"size": 3, "scale": 0.5, "clip": None}),
    limits=Limits(trained_length=LIMIT, max_length=LIMIT),
    inputs=[
        InputSpec(name="input_ids", dtype="int64", axes=AXES, role="tokens", size=VOCAB),
        InputSpec(name="attention_mask", dtype="int64", axes=AXES, role="mask"),
        InputSpec(name="token_type_ids", dtype="int64", axes=AXES, role="types", size=2),
    ],
    outputs=[
        OutputSpec(name="last_hidden_state", axes=[*AXES, WIDTH]),
        OutputSpec(name="sentence_embedding", axes=["batch_size", WIDTH]),
    ],
    recipe=Recipe(task="feature-extraction", opset=18),
    opset=18,
    ir_version=10,
    functions=[],
    lowerings={},
    files={},
    tools={"onnx": onnx.__version__},
    parity=ParitySummary(
        points=3, passed=2, skipped=0, rejected=1, worst_error=1e-7, worst_tolerance=2e-6, complete=True
    ),
    proven=True,
    proven_on=["cpu"],
    created="2026-01-01T00:00:00+00:00",
)
WORDS = ["[PAD]", "[CLS]", "[SEP]", "a", "cat", "sits", "dog"]
TOKENIZER = {
    "version": "1.0",
    # as saved by sentence-transformers: both would change what a caller gets
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
    "added_tokens": [],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}},
    },
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "[SEP]"},
}


def tiny_model(table: np.ndarray = TABLE) -> onnx.ModelProto:
    """The model; the guard's message is the name of its Reshape."""
    model = parser.parse_model(GRAPH)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    for node in model.graph.node:
        node.name = "input longer than 11 positions" if node.op_type == "Reshape" else f"the_{node.output[0]}"
    onnx.checker.check_model(model, full_check=True)
    return model


def write_bundle(
    target: Path,
    *,
    model: onnx.ModelProto | None = None,
    manifest: Manifest = MANIFEST,
    external: bool = False,
    texts: bool = False,
    config: dict[str, object] | None = None,
    force: bool = False,
) -> Path:
    """A real bundle, written as posexport writes them."""
    with staged(target, force=force) as staging:
        # a copy: saving with external data changes the model
        copy = onnx.ModelProto.FromString((model or tiny_model()).SerializeToString())
        options = (
            {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 64} if external else {}
        )
        onnx.save_model(copy, staging / "model.onnx", **options)
        if texts:
            (staging / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        if config is not None:
            (staging / "tokenizer_config.json").write_text(json.dumps(config))
        seal(staging, manifest)
    return target


def rewrite(directory: Path, **changes: object) -> None:
    """Change fields of a bundle's manifest on disk, checking nothing."""
    path = directory / "posexport.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **changes}))


def expected(ids: object, mask: object, types: object) -> np.ndarray:
    """``last_hidden_state`` by definition, to the bit: float32, each operation rounded once."""
    rows = TABLE[np.asarray(ids)] + np.float32(100) * np.asarray(types, np.float32)[..., None]
    return rows * np.asarray(mask, np.float32)[..., None]
