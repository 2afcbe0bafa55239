"""The encoder's cross attention."""

import numpy as np
import torch
from torch import Tensor

from tests.small import source
from tests.tolerances import agree


def test_positions_of_the_states_that_are_attended_to_are_theirs() -> None:
    """Masked states at the end change nothing, and their order counts."""
    module = source("relative-key", "cross_attention=true").module.double().eval()
    random = torch.Generator().manual_seed(0)
    ids, states = torch.randint(1, 61, (2, 5), generator=random), torch.randn(2, 9, 20, generator=random).double()

    def outputs(states_BSC: Tensor, mask_BS: Tensor) -> Tensor:
        with torch.no_grad():
            (result,) = module(
                ids, torch.ones_like(ids), encoder_hidden_states=states_BSC, encoder_attention_mask=mask_BS
            )
        return result  # type: ignore[no-any-return]

    alone = outputs(states[:, :7], torch.ones(2, 7).long())
    padded = outputs(states, torch.ones(2, 9).long().index_fill(1, torch.tensor([7, 8]), 0))
    agree(padded.numpy(), alone.numpy(), "model", np.float64)
    assert (outputs(states[:, :7].flip(1), torch.ones(2, 7).long()) - alone).abs().max() > 1e-3
