"""The numbers of two published biases by distance: ALiBi's slopes and the edges of T5's buckets."""

import math
from collections.abc import Sequence


def slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """One slope per head: a power-of-two run down to ``2^-bias_max``, then every other slope of the next run."""
    whole = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-bias_max * (h + 1) / whole) for h in range(whole)]
    rest = [2 ** (-bias_max / 2 * (2 * h + 1) / whole) for h in range(heads - whole)]
    return first + rest


def is_published(values: Sequence[float]) -> bool:
    """Whether slopes equal the paper's, up to the rounding of float32."""
    return all(abs(slope - exact) <= 1e-6 * exact for slope, exact in zip(values, slopes(len(values)), strict=True))


def edges(count: int, max_distance: int) -> list[int]:
    """The lowest distance of each of ``count`` buckets but the first.

    Bucket ``b`` of the far ones begins where ``e + log(n / e) / log(max_distance / e) * (count - e)`` reaches ``b``,
    ``e = count // 2`` being the number of near ones: at the lowest n with ``(n / e)^(count - e) >= (max_distance /
    e)^(b - e)``, a comparison of whole numbers.
    """
    near = count // 2
    power = count - near
    lowest = list(range(1, near + 1))
    for step in range(1, power):
        bound = max_distance**step * near ** (power - step)
        low, high = lowest[-1], max_distance
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if middle**power >= bound else (middle + 1, high)
        lowest.append(low)
    return lowest
