"""The relative position bias of T5's attention (arXiv:1910.10683, section 2.1) with posexport's KV cache.

transformers computes it for as many keys as a call has tokens; here it is T5's term of `posexport.encodings.t5`, with
the layer's table, over past and new tokens. Layers without a table add the bias of the layer that has one.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posexport.encodings.encoding import Term
from posexport.encodings.t5 import bucketed
from posexport.graph.ops.biases import edges
from posexport.nn.cached_call import NotCachedError
from posexport.nn.caching import Reach


def has_table(module: Any) -> bool:
    """Whether an attention of transformers computes T5's bias."""
    return bool(getattr(module, "has_relative_attention_bias", False)) and hasattr(module, "relative_attention_bias")


def is_added(module: Any, bias: Tensor | None, computed: Sequence[Tensor]) -> bool:
    """Whether ``bias`` is T5's, of ``module`` or among those ``computed`` before; False for zeros.

    Raises:
        NotCachedError: it is another bias.
    """
    if bias is None or not bool(bias.any()):
        return False
    if not has_table(module) and not any(bias is earlier for earlier in computed):
        raise NotCachedError("it adds a bias to its scores, which a cache does not have")
    return True


def term(module: Any, q: Tensor, at: Reach) -> Term:
    """The bias of the layer's table for new tokens and all tokens of a call."""
    both = not module.is_decoder
    count = module.relative_attention_num_buckets // (2 if both else 1)
    bounds = edges(count, module.relative_attention_max_distance)
    table = module.relative_attention_bias.weight
    return bucketed(table, bounds, q, at.queries, at.keys, bidirectional=both)
