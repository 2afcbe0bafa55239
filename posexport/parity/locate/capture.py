"""What every submodule of the definition computes, in the order it is computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.parity.criterion import Array

#: ``in`` and ``out`` of a module's call; ``scores`` and ``softmax``: what enters and leaves a softmax
Side = Literal["in", "scores", "softmax", "out"]


@dataclass(frozen=True)
class Checkpoint:
    """One value. ``call`` counts the calls of the same module, ``softmax`` all softmaxes of the run."""

    module: str
    call: int
    side: Side
    value: Array
    softmax: int = 0


class _Softmaxes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each softmax however a module spells it."""

    def __init__(self, seen: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._softmax.default, torch.ops.aten.softmax.int):
            self.seen(args[0], out)
        return out


def capture(module: nn.Module, tensors: Mapping[str, Tensor]) -> list[Checkpoint]:
    """Run ``module`` once and return its real-valued intermediate values, first to last."""
    found: list[Checkpoint] = []
    calls: dict[str, int] = {}
    inside: list[str] = []
    softmaxes = 0

    def keep(name: str, call: int, side: Side, value: object) -> None:
        if isinstance(value, tuple):
            # several outputs of one shape could not be told apart in the graph
            value = value[0] if len(value) == 1 or (side == "in" and value) else None
        if isinstance(value, Tensor) and value.is_floating_point():
            found.append(Checkpoint(name, call, side, value.detach().cpu().numpy().copy(), softmaxes))

    def before(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], __: dict[str, Any]) -> None:
            inside.append(name)
            keep(name, calls.get(name, 0), "in", args)

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: tuple[Any, ...], out: object) -> None:
            inside.pop()
            keep(name, calls.get(name, 0), "out", out)
            calls[name] = calls.get(name, 0) + 1

        return hook

    def softmax(scores: Tensor, probs: Tensor) -> None:
        nonlocal softmaxes
        place = inside[-1] if inside else ""
        keep(place, calls.get(place, 0), "scores", scores)
        keep(place, calls.get(place, 0), "softmax", probs)
        softmaxes += 1

    handles = []
    for name, part in module.named_modules():
        if name:
            handles.append(part.register_forward_pre_hook(before(name), with_kwargs=True))
            handles.append(part.register_forward_hook(after(name)))
    try:
        with torch.inference_mode(), _Softmaxes(softmax):
            module(**tensors)
    finally:
        for handle in handles:
            handle.remove()
    return found
