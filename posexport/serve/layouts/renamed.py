"""Graphs with a client's names of inputs and outputs."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from posexport.definition.definition import Part
from posexport.sources.source import Source
from posexport.spec import InputSpec, State


def renamed(source: Source, names: Mapping[str, str]) -> Source:
    """``source`` with other names in its graphs; ``names``: by those of the whole model."""
    return msgspec.structs.replace(source, parts=[_renamed(part, names) for part in source.parts])


def _renamed(part: Part, names: Mapping[str, str]) -> Part:
    spec = part.spec
    inputs = {name: names.get(whole, name) for name, whole in spec.input_names.items()}
    outputs = {name: names.get(whole, name) for name, whole in spec.output_names.items()}
    changed = msgspec.structs.replace(
        spec,
        inputs=[_input(each, inputs, outputs) for each in spec.inputs],
        outputs=[msgspec.structs.replace(each, name=outputs[each.name]) for each in spec.outputs],
        input_names={inputs[name]: whole for name, whole in spec.input_names.items()},
        output_names={outputs[name]: whole for name, whole in spec.output_names.items()},
    )
    return replace(part, spec=changed)


def _input(spec: InputSpec, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> InputSpec:
    state = State(output=outputs[spec.state.output]) if isinstance(spec.state, State) else spec.state
    return msgspec.structs.replace(spec, name=inputs.get(spec.name, spec.name), state=state)
