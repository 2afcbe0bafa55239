"""A position encoding that acts on the token embeddings, for models that people write themselves.

Shape letters: B batch, T tokens, C channels.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from posexport.encodings.build import lookup
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.nn import checks
from posexport.nn.cached_call import current
from posexport.nn.caching import Caching, Reach
from posexport.nn.named_encoding import encoding_of


class InputEncoding(nn.Module):
    """Positions added to token embeddings (or joined to them): [B, T, C] to [B, T, ``width``].

    Examples:
        >>> import torch
        >>> from posexport.nn import InputEncoding
        >>> positions = InputEncoding(60, "sinusoidal")
        >>> positions(torch.randn(2, 7, 60)).shape
        torch.Size([2, 7, 60])
    """

    def __init__(
        self,
        hidden: int,
        encoding: str | Encoding = "sinusoidal",
        *,
        settings: Mapping[str, Any] | None = None,
        heads: int | None = None,
    ) -> None:
        """
        Args:
            hidden: channels of the token embeddings.
            encoding: a name of ``posexport list encodings`` that acts on the input, or an ``Encoding``.
            settings: of the encoding, by name: ``{"max_positions": 1024}``.
            heads: of the layers that use the same encoding in attention, where it acts there too (``mpnet``).

        Raises:
            PosexportError: a size, an encoding or a setting that does not fit, in one sentence.
        """  # noqa: D205 (the class says what it is)
        super().__init__()
        sizes = {"hidden": hidden} | ({} if heads is None else {"heads": heads})
        checks.sizes(**sizes)
        self.hidden = hidden
        kind = lookup(encoding).cls if isinstance(encoding, str) else type(encoding)
        if issubclass(kind, Encoding) and "embed" not in kind.hooks:
            raise PosexportError(
                f"{kind.name} acts in attention, not on the token embeddings: use posexport.nn.Attention("
                f"hidden, heads, {kind.name!r})"
            )
        self.encoding = encoding_of(encoding, settings, sizes)

    @property
    def width(self) -> int:
        """Channels of the output: more than ``hidden`` where the encoding concatenates a vector."""
        return self.hidden + self.encoding.added_width

    def forward(
        self, x: Tensor, attention_mask: Tensor | None = None, *, position_ids: Tensor | Positions | None = None
    ) -> Tensor:
        """Token embeddings with the positions in them.

        Args:
            x: [B, T, C].
            attention_mask: [B, T], 1 for a token and 0 for padding. If not None, tokens are numbered by it, so
                that padding on the left moves none; otherwise all are counted from 0.
            position_ids: int64 [B or 1, T], or `Positions`: these numbers instead.

        Returns:
            [B, T, ``width``].
        """
        checks.channels("x", x, self.hidden)
        checks.mask(attention_mask, x, causal=True)
        call = current()
        checks.length(self.encoding, x.shape[1] if call is None else call.mask_BS.shape[1])
        if call is not None:
            call.check("posexport.nn.InputEncoding", attention_mask, position_ids)
            at = call.at.queries
        elif position_ids is not None or attention_mask is None:
            at = checks.positions(position_ids, x)
        else:
            at = Reach.by_mask(attention_mask, x.shape[1], Caching()).queries
        return self.encoding.embed(x, at)

    def extra_repr(self) -> str:
        """What the submodules do not show."""
        return f"hidden={self.hidden}, encoding={self.encoding.name}"
