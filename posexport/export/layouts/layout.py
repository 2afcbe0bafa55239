"""What a layout is, and what several layouts do alike."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from posexport.definition.definition import Part
from posexport.errors import PosexportError
from posexport.export.save import OwnFile, Store
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.encoder_decoder_parts import Wiring
from posexport.sources.source import Source
from posexport.spec import CAPACITY, InputSpec, PartSpec
from posexport.targets.precisions import FP32, Precision

CONFIG = "config.json"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One layout; without anything said, posexport's own.

    Attributes:
        arrange: the source with its graphs named and cut as the layout has them; PosexportError where it cannot hold
            such a model.
        store: where the weights of the graphs go.
        write: what stands beside the graphs, once they and the source's files are written.
        names_precision: the names of graphs say their precision, so that a directory can hold several.
        microsoft: ONNX Runtime's own operators that every client of the layout has, whatever the target.
    """

    arrange: Callable[[Source], Source] = lambda source: source
    store: Callable[[Source], Store] = lambda _: OwnFile()
    write: Callable[[Path, Source], None] = lambda _directory, _source: None
    names_precision: bool = False
    microsoft: frozenset[str] = frozenset()

    def arranged(self, source: Source, precision: Precision = FP32) -> Source:
        """The source with its graphs named and cut, for a model of ``precision``."""
        source = self.arrange(source)
        if not self.names_precision:
            return source
        if not precision.client_dtype:
            raise PosexportError(f"no client of this layout has a name for {precision.name}; leave --layout out")
        return msgspec.structs.replace(source, parts=[_suffixed(part, precision.suffix) for part in source.parts])


def _suffixed(part: Part, suffix: str) -> Part:
    path = PurePosixPath(part.spec.file)
    file = path.with_name(f"{path.stem}{suffix}{path.suffix}").as_posix()
    return replace(part, spec=msgspec.structs.replace(part.spec, file=file))


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
    """PosexportError where no file tells ``client`` what the model is, or its cache is not the client's."""
    if CONFIG not in source.files:
        raise PosexportError(
            f"--layout {layout} needs a checkpoint with a {CONFIG}, by which {client} knows a model; {source.name} has "
            "none: leave it out"
        )
    if any(CAPACITY in spec.axes for spec in source.inputs):
        raise PosexportError(f"--layout {layout} needs --cache dynamic: {client} keeps no static KV cache")


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
