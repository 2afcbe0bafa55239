"""Writes an optimised graph with the interface of the file that it was made from, to the letter."""

from pathlib import Path

import onnx
import onnx_ir as ir

from posexport.export.negotiate import IR_VERSION
from posexport.graph.provenance import strip_provenance
from posexport.graph.queries import weight_bytes

#: protobuf's limit is 2 GB; larger weights are in a file beside the graph
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
    for ours, theirs in ((proto.graph.input, declared.graph.input), (proto.graph.output, declared.graph.output)):
        if [value.name for value in ours] != [value.name for value in theirs]:
            raise AssertionError(f"{output}: {[value.name for value in ours]}")
        del ours[:]
        ours.extend(theirs)
    # sizes that were inferred for passes; ONNX Runtime infers its own
    del proto.graph.value_info[:]
    proto.metadata_props.extend(declared.metadata_props)
    proto.metadata_props.add(key=_METADATA, value=f"posexport {VERSION}")
    onnx.save(proto, str(output))
