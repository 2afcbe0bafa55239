"""Phrases of a text as transformers separates them."""

import pytest
import torch

from posexport.through.phrases import masks_and_positions


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
