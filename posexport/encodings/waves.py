"""Frequencies of the sinusoidal features (`posexport.graph.ops.waves`)."""


def frequencies(size: int, base: float = 10000.0) -> list[float]:
    """``base^(-2i / size)``, one for every pair of channels. Python floats: ``module.half()`` cannot round them."""
    return [base ** (-2 * i / size) for i in range((size + 1) // 2)]
