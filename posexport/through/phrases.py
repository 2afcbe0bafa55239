"""Replaces operators that graphs lack; the phrases of a text (Grounding DINO, arXiv:2303.05499).

Shape letters: B batch, T tokens.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from posexport.sources.torch_fixes.patch import patched
from posexport.through import complex_rotation
from posexport.through.states import files_of

_NAME = "generate_masks_with_special_tokens_and_transfer_map"


@contextmanager
def in_graphs(model: nn.Module) -> Iterator[None]:
    """Inside the block, modeling files of ``model`` compute phrases and rotations by operators that a graph has.

    transformers' functions use ``torch.isin``, ``torch.cummax`` and complex numbers, which PyTorch's exporter has no
    operators for.
    """
    with ExitStack() as stack:
        for file in files_of(model):
            if _NAME in vars(file):
                stack.enter_context(patched(file, _NAME, masks_and_positions))
            if embedding := vars(file).get(complex_rotation.CLASS):
                stack.enter_context(patched(embedding, "forward", complex_rotation.angles))
                stack.enter_context(patched(file, complex_rotation.FUNCTION, complex_rotation.rotated))
        yield


def masks_and_positions(input_ids: Tensor, special_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens attend to each other, [B, T, T], and the position of each in its phrase, [B, T].

    A phrase ends with a special token. A special token at either end of the text is alone.
    """
    length = input_ids.shape[1]
    special_BT = (input_ids[..., None] == special_tokens).any(-1)
    at_T = torch.arange(length, device=input_ids.device)
    # the special tokens before every token and from it on: [B, T, T], of every token all others
    before_BTT = special_BT[:, None] & (at_T < at_T[:, None])
    behind_BTT = special_BT[:, None] & (at_T >= at_T[:, None])
    last_BT = torch.where(before_BTT, at_T, -1).amax(2)
    next_BT = torch.where(behind_BTT, at_T, length).amin(2)
    inside_BT = (next_BT != 0) & (next_BT < length - 1)
    same_BTT = (next_BT[:, :, None] == next_BT[:, None]) & inside_BT[:, None]
    positions_BT = torch.where(inside_BT, (at_T - last_BT - 1).clamp(min=0), 0)
    return same_BTT | (at_T == at_T[:, None]), positions_BT
