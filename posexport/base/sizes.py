"""Sizes of axes that follow from others: multiples, and the frames that convolutions make of samples."""

from collections.abc import Iterator, Sequence


def multiple(size: int, step: int) -> int:
    """The smallest multiple of ``step`` from ``size`` on."""
    return -(-size // step) * step


def frames(length: int, convolutions: Sequence[tuple[int, int]]) -> int:
    """How many tokens ``length`` samples become after ``convolutions``, (kernel, stride) each."""
    for kernel, stride in convolutions:
        length = max(0, (length - kernel) // stride + 1)
    return length


def samples(tokens: int, convolutions: Sequence[tuple[int, int]]) -> int:
    """The fewest samples that become so many tokens."""
    for kernel, stride in reversed(convolutions):
        tokens = (tokens - 1) * stride + kernel
    return tokens


def primes(number: int) -> Iterator[int]:
    """The prime factors of ``number``, each as often as it divides."""
    divisor = 2
    while number > 1:
        if number % divisor == 0:
            yield divisor
            while number % divisor == 0:
                number //= divisor
        divisor += 1
