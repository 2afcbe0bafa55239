"""Einsums that are linear projections with a weight of more than two axes, as ``bpd,hde->bphe`` of transformer-lens."""

import math

from torch import Tensor


def as_linear(equation: object, operands: tuple[object, ...]) -> Tensor | None:
    """The einsum of x and a weight as ``x @ weight``, with axes moved and joined; None where it is another one.

    Every letter of the weight, of known sizes, is summed or the result's alone; x's other letters are the result's.
    """
    if not isinstance(equation, str) or len(operands) != 2 or "..." in equation:
        return None
    x, weight = operands
    terms, _, out = equation.replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor) or weight.ndim < 3:
        return None
    if any(len(set(term)) < len(term) for term in (first, second, out)) or (x.ndim, weight.ndim) != (
        len(first),
        len(second),
    ):
        return None
    rows = [letter for letter in first if letter not in second]
    summed = [letter for letter in second if letter in first]
    columns = [letter for letter in second if letter not in first]
    size = dict(zip(second, weight.shape, strict=True))
    if not rows or not summed or not columns or set(out) != {*rows, *columns}:
        return None
    if not all(isinstance(n, int) for n in weight.shape) or any(x.shape[first.index(s)] != size[s] for s in summed):
        return None
    left = x.permute([first.index(letter) for letter in [*rows, *summed]]).flatten(-len(summed))
    right = weight.permute([second.index(letter) for letter in [*summed, *columns]])
    joined = right.reshape(math.prod(size[letter] for letter in summed), -1)
    product = (left @ joined).reshape(*left.shape[:-1], *(size[letter] for letter in columns))
    return product.permute([[*rows, *columns].index(letter) for letter in out])
