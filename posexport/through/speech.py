"""Encoders of raw sound in encoder-decoders: their states, and the mask of states of a mask of samples.

Shape letters: B batch, N samples, S states, C model size.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from posexport.sources.torch_fixes.patch import patched
from posexport.through.inputs import convolutions_of

#: methods of transformers' encoders: how many states samples make, and the mask of states
_LENGTHS, _MASK = "_get_feat_extract_output_lengths", "_get_feature_vector_attention_mask"


def encoded_sound(encoder: Any, tensors: Mapping[str, Tensor], mask_BN: Tensor) -> tuple[Tensor, Tensor]:
    """The states [B, S, C] of sounds and their mask, int64 [B, S], as transformers computes both."""
    with _in_graphs(type(encoder)):
        answer = encoder(**tensors, return_dict=True)
        states_BSC, mask_BS = answer.last_hidden_state, getattr(answer, "attention_mask", None)
        if mask_BS is None:
            # behind the adapter, as the encoder-decoder asks for it
            mask_BS = getattr(encoder, _MASK)(states_BSC.shape[1], mask_BN)
    return states_BSC, mask_BS.to(torch.int64)


@contextmanager
def _in_graphs(kind: type) -> Iterator[None]:
    """While a graph is traced, the methods of an encoder's class compute the same by operators that a graph has."""
    with ExitStack() as stack:
        if torch.compiler.is_compiling():
            if hasattr(kind, _MASK):
                stack.enter_context(patched(kind, _MASK, _states_mask))
            elif hasattr(kind, _LENGTHS):
                stack.enter_context(patched(kind, _LENGTHS, _number_of_states))
        yield


def _states_mask(encoder: Any, states: int, mask_BN: Tensor, **given: Any) -> Tensor:
    """The mask of states, [B, S]; ``given``: ``add_adapter``. transformers writes ones at computed places.

    It writes a one at the last state that is real, also where that is one before the first, which is the last of all.
    """
    count_B1 = getattr(encoder, _LENGTHS)(mask_BN.sum(-1), **given).to(torch.int64)[:, None]
    at_S = torch.arange(states, device=mask_BN.device)
    return at_S < torch.where(count_B1 > 0, count_B1, count_B1 + states)


def _number_of_states(encoder: Any, samples: int) -> int:
    """In whole numbers, which stay symbols; transformers takes ``int()`` of fractions."""
    for kernel, stride in convolutions_of(encoder.config):
        samples = (samples - kernel) // stride + 1
    return samples
