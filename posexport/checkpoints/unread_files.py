"""Files of known libraries in a model's folder that change its outputs, and that posexport does not read.

Copies of the weights in other formats, training states and exports (``onnx/``, ``openvino/``) change no output and
are not listed.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from posexport.base.registry import Registry
from posexport.checkpoints.hub_cache import BGE_M3 as BGE_M3_FILES
from posexport.checkpoints.weights import first_few

#: folders below a checkpoint that are searched
_DEPTH = 2


@dataclass(frozen=True, kw_only=True)
class UnreadFiles:
    """Files of one library.

    Attributes:
        library: who reads them.
        patterns: their names below the checkpoint's folder; ``*`` matches folders too.
        lost: the end of the remark: the part that the bundle lacks.
    """

    library: str
    patterns: tuple[str, ...]
    lost: str


_ADAPTERS = ("pytorch_adapter.bin", "adapter.safetensors", "pytorch_model_head.bin", "model_head.safetensors")
SETFIT = UnreadFiles(
    library="SetFit",
    patterns=("model_head.pkl", "config_setfit.json"),
    lost="the classifier is not in this bundle",
)
BGE_M3 = UnreadFiles(
    library="FlagEmbedding (BGE-M3)",
    patterns=BGE_M3_FILES,
    lost="sparse and multi-vector embeddings are not in this bundle; --allow-pickle reads both files of an embedder",
)
LLM2VEC = UnreadFiles(
    library="LLM2Vec", patterns=("llm2vec_config.json",), lost="its pooling and its attention are not in this bundle"
)
VALUE_HEAD = UnreadFiles(
    library="LLaMA-Factory", patterns=("value_head.safetensors", "value_head.bin"), lost="texts get no reward"
)
PEFT = UnreadFiles(
    library="PEFT",
    patterns=("adapter_config.json", "*/adapter_config.json"),
    lost="the adapter is not merged into this bundle; convert a folder with the adapter alone to merge it",
)
ADAPTERS = UnreadFiles(
    library="adapters (AdapterHub)",
    patterns=tuple(f"{folder}{name}" for folder in ("", "*/") for name in _ADAPTERS),
    lost="the adapter and its head are not in this bundle",
)
MMS = UnreadFiles(
    library="transformers (load_adapter)",
    patterns=("adapter.*.safetensors", "adapter.*.bin"),
    lost="adapters of languages are not in this bundle",
)
CUSTOM_GENERATE = UnreadFiles(
    library="transformers",
    patterns=("custom_generate/generate.py",),
    lost="code of a checkpoint is never run, and generate is posexport's",
)
#: a package adds one by an entry point of the group ``posexport.unread_files``
UNREAD_FILES: Registry[UnreadFiles] = Registry(
    "unread_files",
    UnreadFiles,
    {
        "setfit": f"{__name__}:SETFIT",
        "bge-m3": f"{__name__}:BGE_M3",
        "llm2vec": f"{__name__}:LLM2VEC",
        "value-head": f"{__name__}:VALUE_HEAD",
        "peft": f"{__name__}:PEFT",
        "adapters": f"{__name__}:ADAPTERS",
        "mms": f"{__name__}:MMS",
        "custom-generate": f"{__name__}:CUSTOM_GENERATE",
    },
)


def remarks(names: Iterable[str]) -> list[str]:
    """A sentence for each library that reads some of the files ``names`` (``/`` between parts)."""
    present, kinds = sorted(names), [UNREAD_FILES[name] for name in UNREAD_FILES.names]
    return [
        f"ignored: {first_few(unread)}, of {kind.library}: {kind.lost}"
        for kind in kinds
        if (unread := [name for name in present if any(fnmatchcase(name, pattern) for pattern in kind.patterns)])
    ]


def names_in(folder: Path, *, read: Iterable[Path] = ()) -> Iterator[str]:
    """Names of the files in ``folder`` and in folders below, without hidden folders and the files ``read``."""
    known = {os.path.realpath(path) for path in read}  # Path.resolve raises for links in a ring
    for at, folders, files in os.walk(folder):
        below = Path(at).relative_to(folder)
        folders[:] = [name for name in folders if not name.startswith(".") and len(below.parts) < _DEPTH]
        yield from ((below / name).as_posix() for name in files if os.path.realpath(Path(at) / name) not in known)
