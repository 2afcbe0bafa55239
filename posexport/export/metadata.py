"""What a lone .onnx says of itself: the essentials of the manifest in ``metadata_props``."""

import json

import msgspec
import onnx_ir as ir

from posexport.recipe import Recipe
from posexport.sources.source import Source
from posexport.spec import Limits
from posexport.version import VERSION


def fill(model: ir.Model, source: Source, lowerings: dict[str, str], recipe: Recipe) -> None:
    """Name the producer and write ``posexport.*`` entries, each a string or a JSON value."""
    model.producer_name = "posexport"
    model.producer_version = VERSION
    model.graph.name = "".join(c if c.isalnum() else "_" for c in source.public_name)[-60:]
    entries: dict[str, object] = {
        "source": {
            "name": source.public_name,
            "kind": source.kind,
            "sha256": source.sha256,
            **({} if source.revision is None else {"revision": source.revision}),
        },
        "task": source.task,
        "encoding": msgspec.to_builtins(source.encoding),
        "limits": msgspec.to_builtins(Limits.of(source.limits, source.plan)),
        "inputs": msgspec.to_builtins(source.inputs),
        "outputs": msgspec.to_builtins(source.outputs),
        "lowerings": lowerings,
        "recipe": msgspec.to_builtins(recipe),
        "version": VERSION,
    }
    for key, value in entries.items():
        model.metadata_props[f"posexport.{key}"] = value if isinstance(value, str) else json.dumps(value)
