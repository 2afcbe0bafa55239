"""What a lone .onnx says of itself: the essentials of the manifest in ``metadata_props``."""

import json

import msgspec
import onnx_ir as ir

from posexport import __version__
from posexport.sources.base import Source


def fill(model: ir.Model, source: Source, lowerings: dict[str, str]) -> None:
    """Name the producer and write ``posexport.*`` entries, each a string or a JSON value."""
    model.producer_name = "posexport"
    model.producer_version = __version__
    model.graph.name = "".join(c if c.isalnum() else "_" for c in source.name)[-60:]
    entries: dict[str, object] = {
        "source": {"name": source.name, "kind": source.kind, "sha256": source.sha256},
        "task": source.task,
        "encoding": msgspec.to_builtins(source.encoding),
        "envelope": msgspec.to_builtins(source.envelope),
        "inputs": msgspec.to_builtins(source.inputs),
        "outputs": msgspec.to_builtins(source.outputs),
        "lowerings": lowerings,
        "version": __version__,
    }
    for key, value in entries.items():
        model.metadata_props[f"posexport.{key}"] = value if isinstance(value, str) else json.dumps(value)
