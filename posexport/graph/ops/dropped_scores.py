"""When a number that is added to an attention score drops it: one threshold for all that reads masks.

Softmax weighs a score by exp(score - highest). In float64, the widest type, exp is 0 below -745, in float32 below -104.
A key with `DROPS` added to its score therefore has weight 0 exactly, unless the score exceeded the highest kept score
by 255 (896 in float32); scores of trained models differ by tens. So one number serves masks of -1e4 (BERT, GPT-2),
-1e9, the type's least number or half of it, and -inf. A relative position bias as low also drops keys: with ALiBi's
slope of 1/2, those 2,000 tokens away.
"""

from typing import Any

import numpy as np

DROPS = -1000.0
#: what passes write for a masked key, as `posexport.nn.attention.dropped_score` has it
LOWEST = float(np.finfo(np.float32).min) / 2
#: what passes write for a distance that is dropped: float16 has it, and it is no length
DROPPED_DISTANCE = -float(2**15)


def drops(added: Any) -> Any:
    """Whether a number, or each of an array or tensor, drops the score that it is added to or put in place of."""
    return added <= DROPS
