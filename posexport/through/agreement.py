"""Whether a model of transformers computes the same with our attention and experts as with its own.

Its own way is the eager one, whose softmax is of float32 in any precision.
"""

import copy

import torch
from torch import Tensor

from posexport.errors import PosexportError
from posexport.sources import memory_mapped
from posexport.sources.example import example
from posexport.spec import BATCH, SEQUENCE
from posexport.system.user_code import is_external, raised
from posexport.through import attention
from posexport.through.wrapped import MASK, Wrapped
from posexport.torch_fixes.default_dtype import computing_in
from posexport.torch_fixes.module_precision import in_precision

#: in the remark of a model that computes attention without ours
OWN_ATTENTION = "computes attention by code of its own"
#: rows and tokens; of them, padded ones
_SIZES, _PADDED = {BATCH: 2, SEQUENCE: 19}, 4
#: of the largest element: what two ways to compute an output may differ by
_ROUNDING = 1e-4


class Before:
    """The outputs of a module at the time, in float64 where there is memory for a copy; ``label`` names it."""

    def __init__(self, label: str, module: Wrapped) -> None:
        self.label, self.module = label, module
        small = memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE
        self.dtype = torch.float64 if small else torch.float32
        self.outputs = self._run()
        if small and not self.finite():
            # the eager way takes its softmax in float32, which does not hold what a mask of float64 adds: a padded
            # query that sees padding alone, in a window, is NaN there
            self.dtype = torch.float32
            self.outputs = self._run()

    def changed(self) -> str:
        """The first output that is another one now; nothing where none is."""
        for name, now in self._run().items():
            was = self.outputs[name]
            kept = self._real(was)
            if not float((now[kept] - was[kept]).abs().max()) <= _ROUNDING * float(was[kept].abs().max()):
                return name
        return ""

    def finite(self) -> bool:
        """Whether they are finite where they are compared."""
        return all(bool(output[self._real(output)].isfinite().all()) for output in self.outputs.values())

    def _real(self, output: Tensor) -> Tensor:
        """Where an output is compared: not at padded tokens."""
        kept = torch.ones(output.shape[: min(2, output.ndim)], dtype=torch.bool)
        if output.ndim > 2 and output.shape[1] == _SIZES[SEQUENCE]:
            kept[0, -_PADDED:] = False
        return kept

    def _run(self) -> dict[str, Tensor]:
        wide = self.dtype == torch.float64
        module = in_precision(copy.deepcopy(self.module), self.dtype) if wide else self.module
        tensors = example(self.module.inputs, self.module.sizes(_SIZES))
        if MASK in tensors:
            tensors[MASK][0, -_PADDED:] = 0
        given = {name: x.to(self.dtype) if x.is_floating_point() else x for name, x in tensors.items()}
        try:
            with torch.no_grad(), computing_in(self.dtype):
                outputs: dict[str, Tensor] = module(**given)
        except Exception as err:
            if is_external(err):
                raise
            raise PosexportError(
                f"{self.label}: {type(self.module.model).__name__} cannot be called with {', '.join(given)} alone: it "
                f"raised {raised(err)}; it is not converted through transformers for this task"
            ) from err
        return outputs


def computed_by_ours(label: str, module: Wrapped) -> list[str]:
    """Make ``module`` compute attention and experts by posexport's; a remark where it has attention of its own.

    Raises:
        PosexportError: it computes something else then, or never the same.
    """
    before, name = Before(label, module), type(module.model).__name__
    attention.register()
    attention.use(module.model)
    if not before.changed():
        return []
    attention.use(module.model, attention="eager")
    if changed := before.changed():
        if not before.finite():
            raise PosexportError(
                f"{label}: {name} gives {changed} that are no finite numbers for padded texts; it is not "
                "converted through transformers"
            )
        if Before(label, module).changed():
            raise PosexportError(
                f"{label}: {name} gives another {changed} in every call, so it draws at random or keeps a "
                "state; it is not converted through transformers"
            )
        raise PosexportError(
            f"{label}: {name} gives another {changed} with posexport's experts than with its own; it is not "
            "converted through transformers"
        )
    return [f"{name} {OWN_ATTENTION}, of which posexport sees what is in the graph"]
