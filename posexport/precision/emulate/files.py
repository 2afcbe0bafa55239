"""Emulated copies of model files, for as long as a proof runs."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from posexport.precision.emulate.emulate import emulate
from posexport.spec import PartSpec
from posexport.targets.dtypes import DType

#: weights of so many bytes go to a file beside the copy
_EXTERNAL_ABOVE = 1 << 28


@contextmanager
def emulated(
    model: Path | bytes, half: DType, parts: Sequence[PartSpec] = (), *, everywhere: bool = False
) -> Iterator[Path]:
    """An emulated copy of ``model``, a file or, of ``parts``, the directory of their files; gone after the block.

    ``everywhere``: as of `posexport.precision.emulate.emulate`. Raises PosexportError where the graph has nothing to
    emulate.
    """
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        directory = Path(folder)
        for name in [part.file for part in parts] or ["model.onnx"]:
            file = model / name if parts and isinstance(model, Path) else model
            _copy(file, directory / name, half, everywhere=everywhere)
        yield directory if parts else directory / "model.onnx"


def _copy(file: Path | bytes, copy: Path, half: DType, *, everywhere: bool) -> None:
    loaded = ir.from_proto(onnx.ModelProto.FromString(file)) if isinstance(file, bytes) else ir.load(file)
    emulate(loaded, half, everywhere=everywhere)
    copy.parent.mkdir(parents=True, exist_ok=True)
    size = sum(
        value.const_value.nbytes for value in loaded.graph.initializers.values() if value.const_value is not None
    )
    if size <= _EXTERNAL_ABOVE:
        ir.save(loaded, copy)
    else:
        ir.save(loaded, copy, external_data=copy.name + ".data", size_threshold_bytes=1024)
