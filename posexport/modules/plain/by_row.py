"""Positions that differ from row to row, in a forward that has one for all rows.

A user's ``torch.arange(T)`` is the same for the whole batch, and padding on the left would move a row's positions.
What is computed from it is computed beside it for every row, by `torch.vmap`, until it meets the tokens: there that of
the rows takes its place, on the batch axis: the first on which it has one for all where the tokens have more. Tokens
are followed from the inputs on, by an attribute of tensors.

Shape letters: B batch, T new tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from posexport.torch_fixes import complex_views, vmap_index

_DATA, _ROWS = "_posexport_data", "_posexport_rows"
#: casts, which are those of all rows at once: vmap cannot trace what PyTorch asserts of their types
_CASTS = {"to", "type", "type_as", "float", "double", "half"}
#: what joins tensors: vmap makes a constant of the batch there
_JOINS = (torch.cat, torch.concat, torch.concatenate)
#: what picks along an axis: vmap makes a constant of the batch there too
_PICKS = (torch.gather, Tensor.gather)
#: functions that take a dtype or a size of another tensor alone
_LIKE = {"type_as", "to", "expand_as", "view_as", "reshape_as", "zeros_like", "ones_like", "full_like", "empty_like"}


def data(tensor: Tensor) -> Tensor:
    """Mark an input: what is computed of it belongs to the tokens of the rows."""
    setattr(tensor, _DATA, True)
    return tensor


def positions(of_all: Tensor, rows: Tensor) -> Tensor:
    """Mark ``of_all``: ``rows`` is the same for every row, with the batch in front."""
    setattr(of_all, _ROWS, rows)
    return of_all


def computed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]) -> Any:
    """``run(*args, **kwargs)``, with each row's own positions; ``func``: the function that it stands for."""
    leaves, tree = tree_flatten((tuple(args), dict(kwargs)))
    own = leaves[:1] if getattr(func, "__name__", "") in _LIKE else leaves
    meets = any(hasattr(leaf, _DATA) for leaf in own)
    numbered = [index for index, leaf in enumerate(leaves) if hasattr(leaf, _ROWS)]
    aligned = list(leaves)
    if meets:
        tokens = max((leaf for leaf in leaves if hasattr(leaf, _DATA)), key=lambda leaf: int(leaf.ndim))
        axes = max(leaf.ndim for leaf in leaves if isinstance(leaf, Tensor))
        for index in numbered:
            rows = _aligned(leaves[index], axes, tokens)
            # rows may be a view of more, which a trace cannot write to
            aligned[index] = rows.clone() if index == 0 and _writes(func) else rows
    elif numbered and numbered[0] != 0 and _writes(func) and isinstance(leaves[0], Tensor):
        rows = getattr(leaves[numbered[0]], _ROWS).shape[0]
        positions(leaves[0], leaves[0].expand(rows, *leaves[0].shape).clone())
        numbered.insert(0, 0)
    args, kwargs = tree_unflatten(aligned, tree)
    out = run(*args, **kwargs)
    outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    if meets:
        for leaf in outs:
            data(leaf)
    elif outs and numbered:
        for leaf, rows in zip(outs, _of_rows(func, leaves, tree, numbered), strict=False):
            positions(leaf, rows)
    return out


def _writes(func: Callable[..., Any]) -> bool:
    """Whether ``func`` changes its first argument."""
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _of_rows(func: Callable[..., Any], leaves: list[Any], tree: Any, numbered: list[int]) -> list[Tensor]:
    """The answer for every row, the batch in front; nothing where it cannot be had, as of a value that is read."""

    def alone(*own: Tensor) -> Any:
        filled = list(leaves)
        for index, tensor in zip(numbered, own, strict=True):
            filled[index] = tensor
        args, kwargs = tree_unflatten(filled, tree)
        picked = vmap_index.indexed(func, args)
        return complex_views.called(func, args, kwargs) if picked is None else picked

    if getattr(func, "__name__", "") in _CASTS and numbered == [0]:
        return [alone(getattr(leaves[0], _ROWS))]
    if func in _JOINS and all(index in numbered for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)):
        return [_joined(func, leaves, tree)]
    if func in _PICKS:
        return [_picked(leaves, tree)]
    try:
        answer = torch.vmap(alone)(*(getattr(leaves[index], _ROWS) for index in numbered))
    except (RuntimeError, ValueError):
        return []
    return [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor)]


def _joined(func: Callable[..., Any], leaves: list[Any], tree: Any) -> Tensor:
    """Of every row, along an axis counted without the batch."""
    given, named = tree_unflatten([getattr(leaf, _ROWS, leaf) for leaf in leaves], tree)
    tensors = given[0] if given else named["tensors"]
    axis = given[1] if len(given) > 1 else named.get("dim", named.get("axis", 0))
    joined: Tensor = func(tensors, axis if axis < 0 else axis + 1)
    return joined


def _picked(leaves: list[Any], tree: Any) -> Tensor:
    """Of every row, along an axis counted without the batch."""
    given, named = tree_unflatten(leaves, tree)
    called = dict(zip(("input", "dim", "index"), given, strict=False)) | named
    both = [called["input"], called["index"]]
    rows = next(getattr(each, _ROWS).shape[0] for each in both if hasattr(each, _ROWS))
    table, index = (getattr(each, _ROWS, each.expand(rows, *each.shape)) for each in both)
    axis: int = called["dim"]
    picked: Tensor = table.gather(axis if axis < 0 else axis + 1, index)
    return picked


def _aligned(of_all: Tensor, axes: int, tokens: Tensor) -> Tensor:
    """The rows' own, with the batch where ``tokens`` have it, among tensors of ``axes`` axes."""
    rows: Tensor = getattr(of_all, _ROWS)
    if of_all.ndim < axes:
        return rows[(slice(None),) + (None,) * (axes - of_all.ndim - 1)]
    for_all = [axis for axis, size in enumerate(of_all.shape) if _is_one(size)]
    # where the tokens have one as well it is a sequence of one token, or a batch of one row
    batches = [
        axis for axis in for_all if tokens.ndim < axes or _is_one(rows.shape[0]) or not _is_one(tokens.shape[axis])
    ]
    if batches:
        return rows.squeeze(batches[0] + 1).movedim(0, batches[0])
    # it was repeated for the batch: row b of it, for row b
    return rows.diagonal(0, 0, 1).movedim(-1, 0)


def _is_one(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) and size == 1
