"""The ledgers of an audit: one for each variant of a model, over the graphs that are its parts."""

import re
from collections.abc import Sequence
from pathlib import Path

from posexport.inspect.audit.ledger.ledger import Ledger, ledger

#: what names of variants end in
_VARIANT = re.compile(
    r"[._-](fp16|fp32|bf16|float16|int8|uint8|int4|uint4|quantized|quant|bnb4|q4|q4f16|q8|q4_k|optimized|O[1-4])+$"
)


class Books:
    """Ledgers with one checkpoint.

    ``encoder_model.onnx`` and ``decoder_model.onnx`` are parts of one model: a tensor is lost if neither has it.
    ``model.onnx`` and ``model_fp16.onnx`` are two variants, each with every tensor.
    """

    def __init__(self, checkpoint: Path, files: Sequence[Path]) -> None:
        self.checkpoint = checkpoint
        self._groups: dict[tuple[Path, str], list[Path]] = {}
        for file in files:
            self._groups.setdefault((file.parent, variant(file)), []).append(file)

    def of(self, file: Path) -> Ledger | None:
        """The ledger of the variant that ``file`` is the first part of; None for its other parts."""
        group = self._groups[file.parent, variant(file)]
        return ledger(self.checkpoint, group) if group[0] == file else None


def variant(file: Path) -> str:
    """The ending of a file's name that says in which precision it is; empty for none."""
    ending = _VARIANT.search(file.stem)
    return ending.group(0) if ending else ""
