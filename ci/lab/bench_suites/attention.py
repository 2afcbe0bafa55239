"""One attention layer with a table of relative_key, 12 heads of 64, in several ways; ``FILE.py:factory`` sources.

Run as a module, with the name of a file, it writes the baseline: ONNX's own Attention without positions.
"""

import sys

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.positions import Positions
from posexport.encodings.relative_key import RelativeKey
from posexport.nn.attention import attend

HEADS, HEAD_SIZE, TABLE = 12, 64, 16384
_BASELINE = f"""<ir_version: 10, opset_import: ["": 23]>
attention (float[{BATCH}, {HEADS}, {SEQUENCE}, {HEAD_SIZE}] q, float[{BATCH}, {HEADS}, {SEQUENCE}, {HEAD_SIZE}] k,
           float[{BATCH}, {HEADS}, {SEQUENCE}, {HEAD_SIZE}] v) => (float[b, h, t, d] context)
{{ context = Attention (q, k, v) }}"""


class _Attention(nn.Module):
    """q, k, v [B, H, T, D] to the context [B, H, T, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = RelativeKey(max_positions=TABLE, head_size=HEAD_SIZE)
        nn.init.normal_(self.encoding.table, generator=torch.Generator().manual_seed(0))
        axes: list[str | int] = [BATCH, HEADS, SEQUENCE, HEAD_SIZE]
        self.inputs = [InputSpec(name=name, dtype=MODEL_DTYPE.name, axes=axes, role="values") for name in "qkv"]


class _Lowered(_Attention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = Positions.counted(q.shape[2])
        scores = self.encoding.scores(q, k, positions, positions)
        return attend(q, k, v, scale=HEAD_SIZE**-0.5, scores=scores)


class _Published(_Attention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As transformers 4 has it: a row of the table for every pair, then einsum."""
        ids_T = Positions.counted(q.shape[2]).slots_T
        rows_TSD = self.encoding.table[ids_T[:, None] - ids_T[None, :] + TABLE - 1]
        scores = (q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, rows_TSD)) * HEAD_SIZE**-0.5
        context: Tensor = scores.softmax(-1) @ v
        return context


def lowered() -> nn.Module:
    return _Lowered()


def published() -> nn.Module:
    return _Published()


if __name__ == "__main__":
    import onnx
    import onnx.parser

    onnx.save(onnx.parser.parse_model(_BASELINE), sys.argv[1])
