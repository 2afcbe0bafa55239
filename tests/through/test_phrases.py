"""Phrases of a text as transformers separates them."""

import pytest
import torch

from posexport.through.complex_rotation import angles, rotated
from posexport.through.phrases import masks_and_positions
from tests.tolerances import agree


@pytest.mark.parametrize("length", [1, 2, 9])
def test_as_transformers(length: int) -> None:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from transformers.models.grounding_dino import modeling_grounding_dino as library

    ids_BT = torch.randint(0, 5, (60, length), generator=torch.Generator().manual_seed(length))
    special = torch.tensor([1, 3])
    mask_BTT, positions_BT = masks_and_positions(ids_BT, special)
    expected_BTT, expected_BT = library.generate_masks_with_special_tokens_and_transfer_map(ids_BT, special)
    assert torch.equal(mask_BTT, expected_BTT)
    assert torch.equal(positions_BT, expected_BT)
    assert length < 9 or (positions_BT > 1).any()


def test_a_rotation_by_complex_numbers() -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as library

    torch.manual_seed(0)
    embedding = library.DeepseekV2RotaryEmbedding(transformers.DeepseekV2Config(qk_rope_head_dim=6))
    ids_BT = torch.randint(0, 50, (3, 5))
    q, k = torch.randn(3, 2, 5, 6), torch.randn(3, 1, 5, 6)
    expected = library.apply_rotary_emb(q, k, embedding(q, ids_BT))
    for mine, theirs in zip(rotated(q, k, angles(embedding, q, ids_BT)), expected, strict=True):
        agree(mine, theirs, "model in float32", torch.float32)
