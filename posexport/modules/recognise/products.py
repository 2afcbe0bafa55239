"""``torch.einsum`` of two tensors as a batched matrix product, in which `passes.attention_by_hand` finds attention."""

from collections.abc import Callable

from torch import Tensor


def as_product(
    equation: object, operands: tuple[object, ...], matmul: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    """``bthd,bshd->bhts`` and the like as a product: batch axes, one contracted and one free axis each; else None."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    x, y = operands
    operands_term, arrow, out = equation.replace(" ", "").partition("->")
    first, _, second = operands_term.partition(",")
    if not arrow or not isinstance(x, Tensor) or not isinstance(y, Tensor) or not _are_distinct(first, second, out):
        return None
    batch = [letter for letter in out if letter in first and letter in second]
    rows = [letter for letter in out if letter in first and letter not in second]
    columns = [letter for letter in out if letter in second and letter not in first]
    summed = [letter for letter in first if letter in second and letter not in out]
    if not batch or not len(rows) == len(columns) == len(summed) == 1 or len(first) + len(second) != 2 * len(batch) + 4:
        return None
    if any(x.shape[first.index(letter)] != y.shape[second.index(letter)] for letter in [*batch, *summed]):
        return None  # one of them is broadcast
    left = x.permute([first.index(letter) for letter in [*batch, *rows, *summed]])
    right = y.permute([second.index(letter) for letter in [*batch, *summed, *columns]])
    letters = [*batch, *rows, *columns]
    return matmul(left, right).permute([letters.index(letter) for letter in out])


def _are_distinct(*terms: str) -> bool:
    """Whether every term consists of letters that occur once in it."""
    return all(term.isalpha() and len(set(term)) == len(term) for term in terms)
