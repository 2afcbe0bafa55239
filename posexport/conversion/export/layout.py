"""What the directory of a bundle looks like (``--layout``), and which graphs it holds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import msgspec

from posexport.base.options.check import check_choice
from posexport.base.options.recipe import LAYOUTS
from posexport.base.targets.precisions import FP32, Precision
from posexport.conversion.export.save import OwnFile, Store
from posexport.errors import PosexportError
from posexport.models.definition import Part
from posexport.models.embeddings_input import EmbeddingsInput
from posexport.sources.source import Source


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of an export directory; the default values describe a bundle.

    Attributes:
        arrange: cuts the source into graphs and names their files; PosexportError for a model that the layout cannot
            hold.
        store: where the weights of the graphs are stored.
        write: writes further files, after the graphs and the source's files.
        names_precision: names of graphs contain the precision, so a directory can hold several.
        loading_line: the line of Python that loads the directory with the layout's client; empty: none is shown.
        microsoft: contrib operators of ONNX Runtime that every client of the layout has, for any target.
        adapter_files: its clients load LoRA adapters from files (``--adapter-format onnxruntime``).
        fed: inputs with a default that clients of the layout feed if a session lists them: they have none here.
    """

    arrange: Callable[[Source], Source] = lambda source: source
    store: Callable[[Source], Store] = lambda _: OwnFile()
    write: Callable[[Path, Source], None] = lambda _directory, _source: None
    loading_line: Callable[[Path], str] = lambda _: ""
    names_precision: bool = False
    microsoft: frozenset[str] = frozenset()
    adapter_files: bool = False
    fed: frozenset[str] = frozenset()

    def arranged(self, source: Source, precision: Precision = FP32, *, in_files: bool = False) -> Source:
        """``source`` cut into graphs with file names, for a model of ``precision``; ``in_files``: of its adapters."""
        adapts = self is BUNDLE or (in_files and self.adapter_files)
        if not adapts and any(spec.role == "adapters" for spec in source.inputs):
            other = " (--adapter-format onnxruntime: or genai)" if self.adapter_files else ""
            raise PosexportError(
                f"--adapters is for --layout bundle{other}, since clients of other layouts choose no adapter; convert "
                "the folder of one adapter with this layout, which merges it"
            )
        if self is not BUNDLE and isinstance(source.module, EmbeddingsInput):
            raise PosexportError(
                "--input embeddings is for --layout bundle; clients of other layouts feed ids: leave one out"
            )
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


def layout_named(name: str) -> Layout:
    """The layout that users call ``name``; PosexportError lists the known ones."""
    check_choice("layout", name, LAYOUTS.names)
    layout: Layout = LAYOUTS[name]
    return layout


def arranged(
    source: Source, name: str, precision: Precision = FP32, *, alone: bool = False, in_files: bool = False
) -> Source:
    """``source`` cut into the graphs of the layout ``name``.

    ``alone``: for a single .onnx outside of a directory. ``in_files``: of `Layout.arranged`.

    Raises:
        PosexportError: the layout cannot hold the model.
    """
    source = layout_named(name).arranged(source, precision, in_files=in_files)
    return msgspec.structs.replace(source, parts=[]) if alone and len(source.parts) == 1 else source
