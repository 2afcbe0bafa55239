"""PX511: which of the variants in a folder a provider should take."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.inspect.audit.ledger.books import variant
from posexport.inspect.audit.reading.read import read_model
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: precision -> providers that compute in it, and why others should not
_FITS = {
    "fp32": (("cpu", "cuda", "webgpu", "openvino"), ""),
    "fp16": (("cuda", "webgpu", "openvino"), "float16 is computed by casts to float32 and back, which is slower"),
    "int8": (("cpu", "openvino"), "products of integers have no kernel there"),
    "int4": (("cpu", "cuda", "webgpu"), "blocks of 4 bits have no kernel there"),
}


@dataclass(frozen=True)
class _File:
    path: Path
    precision: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.path.name} ({self.precision}, {self.megabytes:.0f} MB)"


def _check(subject: Subject) -> Iterator[Place]:
    stem = subject.path.stem.removesuffix(variant(subject.path))
    named = [path for path in subject.files.graphs if path.stem.removesuffix(variant(path)) == stem]
    if len(named) < 2 or named[0] != subject.path:
        return
    files = [file for path in named if (file := _file(path)) is not None]
    fit = sorted((f for f in files if subject.provider in _FITS[f.precision][0]), key=lambda file: file.megabytes)
    unfit = [file for file in files if file not in fit]
    if not fit or not unfit:
        return
    reasons = "; ".join(f"{file.path.name}: {_FITS[file.precision][1]}" for file in unfit)
    chosen = " and ".join(map(str, fit))
    yield Place(
        f"of {len(files)} variants, {subject.provider} computes {chosen} as they are; not {reasons}",
        [file.path.name for file in fit],
    )


def _file(path: Path) -> _File | None:
    """The precision of a file by the operators and the types of its weights; None for one that cannot be read."""
    try:
        model = read_model(path)
    except (PosexportError, OSError):
        return None
    operators = Counter(node.op_type for node in model.graph.all_nodes())
    tensors = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    size = Counter[ir.DataType]()
    for tensor in tensors:
        size[tensor.dtype] += tensor.nbytes
    if operators["MatMulNBits"] or size[ir.DataType.INT4] or size[ir.DataType.UINT4]:
        precision = "int4"
    elif operators["MatMulInteger"] or operators["DynamicQuantizeMatMul"] or operators["QLinearMatMul"]:
        precision = "int8"
    elif size[ir.DataType.FLOAT16] > size[ir.DataType.FLOAT]:
        precision = "fp16"
    else:
        precision = "fp32"
    return _File(path, precision, sum(size.values()) / 1e6)


RULE = Rule(
    code="PX511",
    name="variants",
    severity="note",
    finds="a folder has variants of one graph, of which the provider computes some as they are",
    why="Clients choose by the file's name. ONNX Runtime's CPU provider computes float16 by casting, so that the "
    "smaller file is the slower one.",
    remedy="Name the file for your provider when you load the model (file_name, dtype); --provider says for which.",
    check=_check,
    reads="folder",
)
