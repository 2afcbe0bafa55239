"""PX504: RoPE frequencies that differ from config.json."""

from collections.abc import Iterator

import numpy as np

from posexport.graph.dataflow import sources
from posexport.inspect.audit.analyses.frequencies import expected, rope_options
from posexport.inspect.audit.analyses.rotations import Rotation, rotations
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: relative difference of frequencies that a table in half precision has
_NEAR = 2e-2


def _check(subject: Subject) -> Iterator[Place]:
    in_graph = rotations(subject.nodes) if subject.config else []
    for options in rope_options(subject.config) if in_graph else ():
        sets = expected(options, subject.config)
        kind = options.get("rope_type", options.get("type", "default"))
        # sets of another width are of another kind of layer, or of a second model
        comparable = [
            rotation for rotation in in_graph if any(len(rotation.frequencies) == len(right) for right in sets.values())
        ]
        if not comparable:
            continue
        nodes = [rotation.node for rotation in comparable]
        has = "; ".join(dict.fromkeys(str(rotation) for rotation in comparable))
        absent = [name for name, right in sets.items() if not any(_equal(rotation, right) for rotation in comparable)]
        if kind == "dynamic":
            if any(map(_follows_inputs, comparable)):
                continue
            yield Place(
                "config.json asks for dynamic scaling, whose frequencies follow the length of the input, and the "
                f"graph's are constants: {has}",
                nodes,
            )
        elif len(absent) == len(sets):
            yield Place(f"config.json asks for {_requested(kind, sets)}, and the graph has {has}", nodes)
        elif absent:
            yield Place(
                f"config.json has frequencies for short and for long inputs ({kind}), and the graph has none for "
                f"{' and '.join(absent)} ones: {has}",
                nodes,
            )


def _follows_inputs(rotation: Rotation) -> bool:
    """Whether its angles are computed by a power of what inputs decide, as a base is that grows with their length."""
    angles = rotation.node.inputs[0]
    powers = (value for value in sources(angles, breaks=()) if value.producer() is not None) if angles else ()
    return any(
        value.producer().op_type == "Pow"  # type: ignore[union-attr]  # filtered above
        and any(source.is_graph_input() for source in sources(value, breaks=()))
        for value in powers
    )


def _equal(rotation: Rotation, right: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> bool:
    return rotation.frequencies.shape == right.shape and np.allclose(rotation.frequencies, right, rtol=_NEAR)


def _requested(kind: str, sets: "dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]") -> str:
    ranges = " and ".join(f"{right[0]:.4g} to {right[-1]:.4g}" for right in sets.values())
    return f"{kind} frequencies from {ranges}"


RULE = Rule(
    code="PX504",
    name="rope-frequencies",
    severity="error",
    finds="the graph rotates by other frequencies than config.json asks for",
    why="The base or the scaling was lost in the export, or frozen at the example's length: short inputs look right, "
    "long ones degrade.",
    remedy="Export with the original configuration; posexport convert computes length-dependent frequencies in the "
    "graph, and proves them beyond the original length.",
    check=_check,
    reads="folder",
    files={"config.json": '{"hidden_size": 8, "num_attention_heads": 1, "rope_theta": 500000.0}'},
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        other_base (float[B, T] position_ids, int64[B, T] input_ids) => (float[B, T, 4] y)
        <float[4] frequencies = {1.0, 0.1, 0.01, 0.001}, int64[1] last = {-1}>
        {
            positions = Unsqueeze (position_ids, last)
            angles = Mul (positions, frequencies)
            y = Cos (angles)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        same_base (float[B, T] position_ids, int64[B, T] input_ids) => (float[B, T, 4] y)
        <float[4] frequencies = {1.0, 0.0376060309, 0.00141421356, 0.0000531829589}, int64[1] last = {-1}>
        {
            positions = Unsqueeze (position_ids, last)
            angles = Mul (positions, frequencies)
            y = Cos (angles)
        }
    """,
)
