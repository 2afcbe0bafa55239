"""What the layouts of several clients share: how a source is cut into graphs, and what clients read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from posexport.base.spec import CAPACITY, STATES_MASK, InputSpec, PartSpec
from posexport.errors import PosexportError
from posexport.models.definition import Part
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.encoder_decoder_parts import Wiring
from posexport.sources.source import Source

CONFIG = "config.json"


def fed(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    """The same without defaults: clients feed the inputs that a session lists, which are those without one."""
    return [msgspec.structs.replace(spec, default=None) for spec in inputs]


def in_one_part(source: Source, file: str) -> Source:
    """``source`` with its one graph in ``file``."""
    spec = PartSpec(
        file=file,
        inputs=source.inputs,
        outputs=source.outputs,
        input_names={each.name: each.name for each in source.inputs},
        output_names={each.name: each.name for each in source.outputs},
    )
    return msgspec.structs.replace(source, parts=[Part(spec, source.module)])


def check_client(source: Source, layout: str, client: str) -> None:
    """PosexportError where no file tells ``client`` what the model is, or it passes other caches or masks."""
    if CONFIG not in source.files:
        raise PosexportError(
            f"--layout {layout} needs a checkpoint with a {CONFIG}, by which {client} knows a model; {source.name} has "
            "none: leave it out"
        )
    if any(CAPACITY in spec.axes for spec in source.inputs):
        raise PosexportError(f"--layout {layout} needs --cache dynamic: {client} keeps no static KV cache")
    if any(spec.name == STATES_MASK for spec in source.outputs):
        raise PosexportError(
            f"{source.name}: its encoder makes a mask of its states ({STATES_MASK}), which {client} does not pass to a "
            f"decoder; leave --layout {layout} out, and posexport.load can run it"
        )


def keeps_states(source: Source) -> bool:
    """Whether it has states between tokens."""
    return any(spec.role == "state" for spec in source.inputs)


def read_json(path: Path | None) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    if path is None or not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def wiring(source: Source) -> Wiring:
    """The parts that a source can be cut into; PosexportError where it is no encoder-decoder of posexport's."""
    if not isinstance(source.module, EncoderDecoderModel):
        raise PosexportError(f"{source.name} is exported in parts that are not known to any layout; leave it out")
    return source.module.wiring
