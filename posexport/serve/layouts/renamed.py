"""Graphs with a client's names of inputs and outputs."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from posexport.base.spec import InputSpec, State
from posexport.models.definition import Part
from posexport.sources.source import Source


def renamed(source: Source, names: Mapping[str, str]) -> Source:
    """``source`` with other names in its graphs; ``names``: the new name by the name in the whole model."""
    return msgspec.structs.replace(source, parts=[_renamed(graph, names) for graph in source.parts])


def _renamed(graph: Part, names: Mapping[str, str]) -> Part:
    spec = graph.spec
    inputs = {name: names.get(whole, name) for name, whole in spec.input_names.items()}
    outputs = {name: names.get(whole, name) for name, whole in spec.output_names.items()}
    changed = msgspec.structs.replace(
        spec,
        inputs=[_input(value, inputs, outputs) for value in spec.inputs],
        outputs=[msgspec.structs.replace(value, name=outputs[value.name]) for value in spec.outputs],
        input_names={inputs[name]: whole for name, whole in spec.input_names.items()},
        output_names={outputs[name]: whole for name, whole in spec.output_names.items()},
    )
    return replace(graph, spec=changed)


def _input(spec: InputSpec, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> InputSpec:
    state = State(output=outputs[spec.state.output]) if isinstance(spec.state, State) else spec.state
    return msgspec.structs.replace(spec, name=inputs.get(spec.name, spec.name), state=state)
