"""Axes of inputs that a module reads at the example's size alone, or at the size of another input.

``if state.shape != x.shape: state = torch.zeros_like(x)``: at other sizes it makes a state of its own, and takes the
input without a word.
"""

from collections.abc import Collection, Sequence

import torch

from posexport.modules.axes.classified import Classified, Varying
from posexport.modules.axes.example_calls import ExampleCalls, TensorAxis, resized

#: calls that remain for the search for names
_SPARED = 6


def fix_unread(calls: ExampleCalls, classified: Classified, declared: Collection[TensorAxis]) -> None:
    """Such axes of real numbers that no output shows join a batch of their size, or keep the example's size."""
    ranks = [tensor.dim() for tensor in calls.tensors.values() if tensor.is_floating_point()]
    for group in list(classified.varying):
        (name, axis), *others = group.members
        tensor = calls.tensors[name]
        if others or group.outputs or (name, axis) in declared or calls.left <= _SPARED:
            continue
        # a state has as many axes as what it is added to
        if not tensor.is_floating_point() or ranks.count(tensor.dim()) == 1:
            continue
        alone, size = [(name, axis)], group.size + group.step
        reads = [_reads(calls, classified, name, alone, tried) for tried in (size, group.size)]
        if reads != [False, True]:
            continue
        classified.varying.remove(group)
        batch = next((other for other in classified.varying if _is_batch(other, group)), None)
        if batch is not None and _reads(calls, classified, name, [*batch.members, *alone], size):
            batch.members = (*batch.members, *alone)
        else:
            classified.fixed[name, axis] = f"the module does not read {name} at other sizes"


def _is_batch(other: Varying, group: Varying) -> bool:
    axes = {axis for _, axis in (*other.members, *group.members)}
    return bool(other.outputs) and other.size == group.size and axes == {0}


def _reads(calls: ExampleCalls, classified: Classified, name: str, axes: Sequence[TensorAxis], size: int) -> bool:
    """Whether outputs depend on an input where ``axes`` have ``size`` elements; a call that fails counts as read."""
    shapes = {other: list(shape) for other, shape in classified.base.items()}
    for other, axis in axes:
        shapes[other][axis] = size
    tensors = {other: resized(tensor, tuple(shapes[other])) for other, tensor in calls.tensors.items()}
    before, after = calls.run(tensors), calls.run({**tensors, name: 1 - tensors[name]})
    if before is None or after is None:
        return True
    return any(not torch.equal(tensor, after[output]) for output, tensor in before.items() if output in after)
