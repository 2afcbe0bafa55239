"""Where the two channels of a rotated pair stand in a head.

``half`` (GPT-NeoX, Llama): channel i and channel i + dim / 2. ``interleaved`` (RoFormer, GPT-J): 2i and 2i + 1.
Independent of the frequencies. F: pairs of channels.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

Layout = Literal["half", "interleaved"]


class Storage(ABC):
    """Takes pairs apart and puts them together again, along the last axis."""

    @abstractmethod
    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[..., 2F] to the first and the second channels of all pairs, [..., F] each."""

    @abstractmethod
    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """The reverse of `split`."""


class Half(Storage):
    """All first channels, then all second ones."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves."""
        pairs = x.shape[-1] // 2
        return x[..., :pairs], x[..., pairs:]

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """One after the other."""
        return torch.cat((first, second), -1)


class Interleaved(Storage):
    """First and second channels in turn."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Even and odd channels."""
        return x[..., 0::2], x[..., 1::2]

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """In turn."""
        return torch.stack((first, second), -1).flatten(-2)


STORAGES: dict[str, Storage] = {"half": Half(), "interleaved": Interleaved()}
