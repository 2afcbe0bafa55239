"""No position encoding: the control that speed and position dependence are measured against.

Haviv et al., "Transformer Language Models without Positional Encodings Still Learn Positional Information"
(arXiv:2203.16634).
"""

from posexport.encodings.encoding import Encoding, register


@register("nope", cases=[{}], source="Haviv et al. 2022, arXiv:2203.16634", control=True)
class NoPE(Encoding):
    """Adds nothing: an encoder with it cannot tell the order of its tokens."""
