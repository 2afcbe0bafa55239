"""Records what every submodule of the definition computes, in the order of computation."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from posexport.proof.criterion import Array

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
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._softmax.default, torch.ops.aten.softmax.int):  # noqa: SLF001 (an operator)
            self.seen(args[0], out)
        return out


class _Recorder:
    """Keeps what enters and leaves modules and softmaxes, while one call runs."""

    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint] = []
        self._calls: Counter[str] = Counter()
        self._inside: list[str] = []
        self._softmaxes = 0

    def hooks(self, name: str, submodule: nn.Module) -> Iterator[RemovableHandle]:
        """Adds hooks that watch one module."""
        yield submodule.register_forward_pre_hook(partial(self._enter, name))
        yield submodule.register_forward_hook(partial(self._leave, name))

    def softmax(self, scores: Tensor, probs: Tensor) -> None:
        """Keep both sides of a softmax, which belongs to the innermost module that runs."""
        name = self._inside[-1] if self._inside else ""
        self._keep(name, "scores", scores)
        self._keep(name, "softmax", probs)
        self._softmaxes += 1

    def _enter(self, name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        self._inside.append(name)
        self._keep(name, "in", args)

    def _leave(self, name: str, _: nn.Module, __: tuple[Any, ...], out: object) -> None:
        self._inside.pop()
        self._keep(name, "out", out)
        self._calls[name] += 1

    def _keep(self, name: str, side: Side, value: object) -> None:
        if isinstance(value, tuple):
            # several outputs of one shape are indistinguishable in the graph
            value = value[0] if len(value) == 1 or (side == "in" and value) else None
        if isinstance(value, Tensor) and value.is_floating_point():
            # NumPy has no bfloat16
            wide = value.float() if value.dtype == torch.bfloat16 else value
            array = wide.detach().cpu().numpy().copy()
            self.checkpoints.append(Checkpoint(name, self._calls[name], side, array, self._softmaxes))


def capture(module: nn.Module, tensors: Mapping[str, Tensor]) -> list[Checkpoint]:
    """Run ``module`` once and return its real-valued intermediate values, first to last."""
    recorder = _Recorder()
    handles = [
        handle for name, submodule in module.named_modules() if name for handle in recorder.hooks(name, submodule)
    ]
    try:
        with torch.inference_mode(), _Softmaxes(recorder.softmax):
            module(**tensors)
    finally:
        for handle in handles:
            handle.remove()
    return recorder.checkpoints
