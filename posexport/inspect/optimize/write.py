"""Writes an optimised graph with the interface of the file that it was made from, to the letter."""

from pathlib import Path

import onnx
import onnx_ir as ir

from posexport.conversion.export.negotiate import IR_VERSION
from posexport.graph.provenance import strip_provenance
from posexport.graph.queries import weight_bytes

#: protobuf's limit is 2 GB; larger weights are in a second file
_MOST_INSIDE = 1_500_000_000
_METADATA = "optimized_by"


def write(model: ir.Model, original: Path, output: Path) -> None:
    """Write ``model`` to ``output``: names, types and sizes of inputs and outputs are those of ``original``."""
    from posexport.version import VERSION

    strip_provenance(model)
    model.ir_version = max(model.ir_version or IR_VERSION, IR_VERSION)
    if weight_bytes(model) > _MOST_INSIDE:
        ir.save(model, output, external_data=f"{output.name}.data")
    else:
        ir.save(ir.external_data.load_to_model(model), output)
    proto = onnx.load(str(output), load_external_data=False)
    declared = onnx.load(str(original), load_external_data=False)
    pairs = ((proto.graph.input, declared.graph.input), (proto.graph.output, declared.graph.output))
    for values, stated in pairs:
        assert [value.name for value in values] == [value.name for value in stated], output
        del values[:]
        values.extend(stated)
    # ONNX Runtime infers sizes itself
    del proto.graph.value_info[:]
    proto.metadata_props.extend(declared.metadata_props)
    proto.metadata_props.add(key=_METADATA, value=f"posexport {VERSION}")
    onnx.save(proto, str(output))
