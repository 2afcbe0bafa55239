"""A submodule that is in two places of a module and writes to its buffer, as a table of positions that layers share.

``torch.export`` gives such a buffer an input under each of its names, of which one is used, and
``run_decompositions`` of the program ends in "expected compiled_fn to be GraphModule". Names that are not used get a
tensor of their own here.

Issue: none known. Seen in 2.13.
"""

from typing import Any

from torch import Tensor
from torch.export import ExportedProgram


def separate(program: ExportedProgram) -> None:
    """Gives a captured program a copy of each shared buffer under the names that it does not use."""
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    buffers = program.graph_signature.inputs_to_buffers
    kept = [name for place, name in buffers.items() if place in used]
    held: list[dict[str, Any]] = [program._state_dict, program._constants]  # noqa: SLF001 (those of its properties)
    for values in held:
        shared = {id(values[name]) for name in kept if name in values}
        for name in set(buffers.values()).intersection(values).difference(kept):
            if isinstance(values[name], Tensor) and id(values[name]) in shared:
                values[name] = values[name].clone()
