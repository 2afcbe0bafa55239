"""``torch.einsum`` of two tensors as the batched matrix product that it is, in which attention by hand is found."""

from collections.abc import Callable

from torch import Tensor


def as_product(
    equation: object, operands: tuple[object, ...], matmul: Callable[[Tensor, Tensor], Tensor]
) -> Tensor | None:
    """The answer of such as ``bthd,bshd->bhts``: batch axes, one contracted and one free axis each; None for others."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    x, y = operands
    taken, arrow, out = equation.replace(" ", "").partition("->")
    first, _, second = taken.partition(",")
    if not arrow or not isinstance(x, Tensor) or not isinstance(y, Tensor) or not _plain(first, second, out):
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


def _plain(*terms: str) -> bool:
    """Letters alone, each once."""
    return all(term.isalpha() and len(set(term)) == len(term) for term in terms)
