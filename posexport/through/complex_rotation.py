"""The rotation of DeepSeek-V2 (arXiv:2405.04434) by cosines and sines, where transformers multiplies complex numbers.

Shape letters: B batch, H heads, T tokens, D head size, F frequencies (half of D).
"""

from typing import Any

import torch
from torch import Tensor

#: the class that computes angles, in modeling files that apply them by `apply_rotary_emb`
CLASS, FUNCTION = "DeepseekV2RotaryEmbedding", "apply_rotary_emb"


def angles(embedding: Any, _: Tensor, position_ids: Tensor) -> Tensor:
    """Cosine and sine of every angle, [B, T, F, 2]; ``forward`` of the class."""
    angle_BTF = position_ids[..., None].float() * embedding.inv_freq.float()
    angles_BTF2: Tensor = torch.stack((angle_BTF.cos(), angle_BTF.sin()), -1) * embedding.attention_scaling
    return angles_BTF2


def rotated(q_BHTD: Tensor, k_BHTD: Tensor, angles_BTF2: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys; two consecutive elements are a pair."""
    cos_B1TF, sin_B1TF = angles_BTF2[:, None].unbind(-1)

    def rotate(x_BHTD: Tensor) -> Tensor:
        x_BHTF, y_BHTF = x_BHTD.float().unflatten(-1, (-1, 2)).unbind(-1)  # type: ignore[no-untyped-call]
        pairs = torch.stack((x_BHTF * cos_B1TF - y_BHTF * sin_B1TF, x_BHTF * sin_B1TF + y_BHTF * cos_B1TF), -1)
        return pairs.flatten(-2).type_as(x_BHTD)

    return rotate(q_BHTD), rotate(k_BHTD)
