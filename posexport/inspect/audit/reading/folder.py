"""The JSON files of a model repository, which say what its graphs should be."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from posexport.errors import PosexportError
from posexport.run.bundle.read import locate

#: bytes of a JSON file; a tokenizer of 250,000 words has 20 MB
_MOST = {"tokenizer.json": 64 << 20}
_MOST_OF_OTHERS = 8 << 20
#: the folder of graphs in repositories of transformers.js and sentence-transformers
GRAPHS = "onnx"


class Folder:
    """The JSON files of a graph's repository, each read when a rule asks for it.

    They are in the graph's folder or, if that is named ``onnx``, in the folder above. A repository is the same whether
    an audit names it, its folder ``onnx`` or one of its graphs.

    Attributes:
        path: the folder of the graph.
        broken: file name -> why it could not be read.
    """

    def __init__(self, graph: Path) -> None:
        self.path = graph.resolve().parent if graph.parent == Path() else graph.parent
        self.roots = [self.path, *([self.path.parent] if self.path.name == GRAPHS else [])]
        self.broken: dict[str, str] = {}
        self._read: dict[str, Any] = {}

    def object(self, name: str) -> Mapping[str, Any]:
        """The object in a JSON file; empty where there is none."""
        content = self.json(name)
        return content if isinstance(content, dict) else {}

    def json(self, name: str) -> Any:
        """The content of a JSON file; None where there is none, and where it cannot be read, which `broken` says."""
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> Any:
        root = next((root for root in self.roots if (root / name).is_file()), None)
        if root is None or ".." in Path(name).parts:
            return None
        most = _MOST.get(name, _MOST_OF_OTHERS)
        try:
            path = locate(root, name)
            if (size := path.stat().st_size) > most:
                raise PosexportError(f"has {size} bytes, more than {most}")
            return msgspec.json.decode(path.read_bytes())
        except (PosexportError, msgspec.DecodeError, OSError, UnicodeDecodeError, RecursionError) as err:
            self.broken[name] = str(err)
            return None

    @cached_property
    def graphs(self) -> Sequence[Path]:
        """The .onnx files in the graph's folder, by name."""
        return sorted(path for path in self.path.glob("*.onnx") if path.is_file())

    @cached_property
    def modules(self) -> Sequence[tuple[str, str]]:
        """The modules of modules.json (sentence-transformers): class name and folder; none where there is no such."""
        listed = self.json("modules.json")
        return list(_modules(listed)) if isinstance(listed, list) else []


def _modules(listed: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for module in listed:
        if isinstance(module, dict) and isinstance(module.get("type"), str):
            folder = module.get("path")
            yield module["type"].rsplit(".", 1)[-1], folder if isinstance(folder, str) else ""


def input_names(path: Path) -> Sequence[str]:
    """The names of the inputs of another graph of a folder; none of a file that cannot be read."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # onnx brings it

    from posexport.inspect.audit.reading.wire import without_weights

    try:
        proto = onnx.ModelProto.FromString(without_weights(path))
    except (PosexportError, OSError, DecodeError):  # its own audit says what is wrong with it
        return []
    return [value.name for value in proto.graph.input]
