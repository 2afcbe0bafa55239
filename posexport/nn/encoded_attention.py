"""Multi-head attention with a position encoding: projections, and attention with the encoding's terms.

Shape letters: B batch, T tokens, S tokens attended to, H heads, G KV heads, D head size, C channels.
"""

from typing import Any, Literal

from torch import Tensor

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.nn.attention import attend, sees_any, shared
from posexport.nn.projections import Projections, split_heads
from posexport.nn.scoring import Scoring


class EncodedAttention(Projections):
    """Projections with an encoding. ``scale``: what scores are multiplied by; ``scoring``: of a query and a key."""

    encoding: Encoding
    scale: float
    scoring: Scoring
    #: the context of queries with padding for all keys: zeros, or as in transformers' code the mean of all values
    of_padding: Literal["zeros", "mean"] = "zeros"

    def attended(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BGSD: Tensor,
        v_BGSD: Tensor,
        mask_B11S: Tensor | None,
        queries: Positions,
        keys: Positions,
        *,
        pairs: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Attention of ``x_BTC`` and the output projection, [B, T, C]; ``options``: further arguments of `attend`.

        ``mask_B11S``: masks padding (`additive`); ``pairs``: a further mask that is added, [B, 1 or H, T, S].
        """
        k_BHSD = shared(k_BGSD, self.heads)
        read_BHTD = split_heads(x_BTC, self.heads) if self.encoding.reads_input else q_BHTD
        context_BHTD = attend(
            q_BHTD,
            k_BGSD,
            v_BGSD,
            scale=self.scale,
            mask=mask_B11S if pairs is None else pairs if mask_B11S is None else pairs + mask_B11S,
            scores=self.encoding.scores(read_BHTD, k_BHSD, queries, keys),
            values=self.encoding.values(queries, keys),
            base=self.scoring.base(k_BHSD, queries, keys),
            **options,
        )
        if mask_B11S is None:
            return self.joined(context_BHTD)
        # not left to the softmax: a mask that is added makes all scores of a row equal in float32, but not in float16
        mean_BH1D = shared(v_BGSD, self.heads).mean(2, keepdim=True) if self.of_padding == "mean" else None
        return self.joined(context_BHTD, sees_any(mask_B11S, options.get("causal")), mean_BH1D)
