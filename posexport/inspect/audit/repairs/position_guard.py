"""PX201: positions beyond the end of a table make the call fail, with the reason as the node's name."""

import onnx_ir as ir

from posexport.graph.builder import Builder
from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.repairs.repair import NotRepairedError, Repair
from posexport.inspect.audit.rule import Place
from posexport.inspect.audit.subject import Subject

#: begins the name of the node that fails beyond a table
BEYOND = "position beyond the"


def _apply(subject: Subject, place: Place) -> list[ir.Value]:
    """A Reshape that changes nothing within the table, and cannot be computed beyond it.

    Before: ``Gather(table [R, D], positions)``
    After:  ``Gather(table, Reshape(positions, Shape(positions) + (ReduceMax(positions) >= R)))``
    """
    known = lookups(subject.nodes, subject.roles, subject.sizes)
    lookup = next((each for each in known if each.node is place.nodes[0]), None)
    positions = None if lookup is None else lookup.node.inputs[1]
    if lookup is None or positions is None or not subject.sizes.of(positions):
        raise NotRepairedError("the rank of its positions is not known")
    g = Builder.at(lookup.node, name=f"{positions.name}_within")
    beyond = g.GreaterOrEqual(g.Cast(g.ReduceMax(positions, keepdims=0), to=ir.DataType.INT64), lookup.rows)
    shape = g.Add(g.Shape(positions), g.Cast(beyond, to=ir.DataType.INT64))
    guarded = g.Reshape(positions, shape)
    node = guarded.producer()
    assert node is not None
    node.name = f"{BEYOND} {lookup.rows} rows of {lookup.table.name}"
    lookup.node.replace_input_with(1, guarded)
    return [*lookup.node.outputs]


REPAIR = Repair(does="a guard refuses positions beyond the table", apply=_apply)
