"""The metadata of an .onnx file: the essentials of the manifest in ``metadata_props``."""

import onnx_ir as ir

from posexport.options.recipe import Recipe
from posexport.sources.source import Source
from posexport.spec import as_metadata
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
        **source.metadata,
        "lowerings": lowerings,
        "recipe": recipe,
        "version": VERSION,
    }
    for key, value in entries.items():
        model.metadata_props[f"posexport.{key}"] = as_metadata(value)
