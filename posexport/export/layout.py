"""What the directory of a bundle looks like (``--layout``), and which graphs it holds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from posexport.definition.definition import Part
from posexport.errors import PosexportError
from posexport.export.save import OwnFile, Store
from posexport.options.layouts import layout_named
from posexport.sources.source import Source
from posexport.targets.precisions import FP32, Precision


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


#: a folder with the manifest, the graphs and the source's files
BUNDLE = Layout()


def arranged(source: Source, name: str, precision: Precision = FP32, *, alone: bool = False) -> Source:
    """``source`` with its graphs named and cut as in the layout ``name``.

    ``alone``: for a lone .onnx, which is no part of a directory.

    Raises:
        PosexportError: the layout is not for such a model.
    """
    source = layout_named(name).arranged(source, precision)
    return msgspec.structs.replace(source, parts=[]) if alone and len(source.parts) == 1 else source
