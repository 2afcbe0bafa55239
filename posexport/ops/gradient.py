"""Gradients of the torch operators, so that a definition with positions can be trained.

PyTorch asks of a custom operator a formula for its derivative. Here it is found from the operator's own body: run again
with everything that writes into a tensor turned into operations that give a new one, which autograd follows. The cost
is one more run of the operator in every backward pass; there is no derivative of the derivative.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class _Assigning(TorchFunctionMode):
    """Writing into a tensor as zeroing it and adding: functionalised, a plain copy has no derivative."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.copy_:
            return args[0].zero_().add_(args[1])
        if func is Tensor.__setitem__:
            args[0][args[1]].zero_().add_(args[2])
            return None
        return func(*args, **(kwargs or {}))


def give_gradient(operator: Any) -> None:
    """Register the derivative of a ``torch.library.custom_op`` with respect to its real-valued tensors."""
    # read, not changed: a custom operator's body has no public name, and calling the operator enters the dispatcher
    # below autograd
    body: Callable[..., Tensor] = torch.func.functionalize(operator._init_fn)  # noqa: SLF001

    def save(ctx: Any, inputs: Sequence[Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        inputs = [x.detach().requires_grad_(wanted) for x, wanted in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad(), _Assigning():
            out = body(*inputs)
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(out, wanted, grad, allow_unused=True))
        return tuple(next(found) if want else None for want in needed)

    operator.register_autograd(backward, setup_context=save)
