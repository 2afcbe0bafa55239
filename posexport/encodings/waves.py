"""The frequencies and layouts of sines and cosines (`posexport.ops.waves`) that sinusoidal encodings take."""

from posexport.errors import PosexportError
from posexport.ops.waves import LAYOUTS


def check_layout(encoding: str, layout: str) -> None:
    """PosexportError unless ``layout`` is one of `Layout`."""
    if layout not in LAYOUTS:
        raise PosexportError(f"{encoding}: layout must be interleaved or half, got {layout!r}")


def frequencies(size: int, base: float = 10000.0) -> list[float]:
    """``base^(-2i / size)``, one for every pair of channels. Python floats: ``module.half()`` cannot round them."""
    return [base ** (-2 * i / size) for i in range((size + 1) // 2)]
