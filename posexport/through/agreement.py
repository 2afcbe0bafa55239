"""Compares a model of transformers with posexport's attention and experts with its eager implementation.

Eager attention computes its softmax in float32 in any precision.
"""

import copy

import torch
from torch import Tensor

from posexport.base.spec import BATCH, SEQUENCE
from posexport.base.system.user_code import is_external, raised
from posexport.errors import PosexportError
from posexport.modules.left_out import has_values
from posexport.sources import memory_mapped
from posexport.sources.example import example
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.module_precision import in_precision
from posexport.through import attention
from posexport.through.inputs import MASK
from posexport.through.module import TransformersModule, with_few_layers

#: in the remark on a model with custom attention
CUSTOM_ATTENTION = "computes attention by code of its own"
#: batch size and sequence length of the comparison, and the number of padding tokens
_SIZES, _PADDED = {BATCH: 2, SEQUENCE: 19}, 4
#: tolerance, relative to the largest element, between two implementations
_ROUNDING = 1e-4


class ReferenceOutputs:
    """The outputs of a module at construction, in float64 if memory allows a copy.

    ``label`` names the checkpoint in messages.
    """

    def __init__(self, label: str, module: TransformersModule) -> None:
        self.label, self.module = label, module
        small = memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE
        self.dtype = torch.float64 if small else torch.float32
        self.outputs = self._run()
        if small and not self.finite():
            # eager attention computes its softmax in float32, where the lowest float64 value of the mask overflows: a
            # padding query with only padding in its window is NaN
            self.dtype = torch.float32
            self.outputs = self._run()

    def first_difference(self) -> str:
        """The name of the first output that differs now; empty if all agree."""
        for name, output in self._run().items():
            compared_BT = self._compared(self.outputs[name])
            actual, expected = output[compared_BT], self.outputs[name][compared_BT]
            left_out = expected.isneginf() & actual.isneginf()
            gap = (actual - expected).masked_fill(left_out, 0.0).abs().max()
            if not float(gap) <= _ROUNDING * float(expected.masked_fill(left_out, 0.0).abs().max()):
                return name
        return ""

    def finite(self) -> bool:
        """Whether all compared elements are finite."""
        return all(has_values(output[self._compared(output)]) for output in self.outputs.values())

    def _compared(self, output: Tensor) -> Tensor:
        """Mask of the rows of an output to compare: all but those of padding tokens."""
        compared_BT = torch.ones(output.shape[: min(2, output.ndim)], dtype=torch.bool)
        if output.ndim > 2 and output.shape[1] == _SIZES[SEQUENCE]:
            compared_BT[0, -_PADDED:] = False
        return compared_BT

    def _run(self) -> dict[str, Tensor]:
        wide = self.dtype == torch.float64
        module = in_precision(copy.deepcopy(self.module), self.dtype) if wide else self.module
        tensors = example(self.module.inputs, self.module.sizes(_SIZES))
        if MASK in tensors:
            tensors[MASK][0, -_PADDED:] = 0
        inputs = {name: x.to(self.dtype) if x.is_floating_point() else x for name, x in tensors.items()}
        try:
            with torch.no_grad(), computing_in(self.dtype):
                outputs: dict[str, Tensor] = module(**inputs)
        except Exception as err:
            if is_external(err):
                raise
            raise PosexportError(
                f"{self.label}: {type(self.module.model).__name__} cannot be called with {', '.join(inputs)} alone: it "
                f"raised {raised(err)}; it is not converted through transformers for this task"
            ) from err
        return outputs


def use_posexport_attention(label: str, module: TransformersModule, *, encoder_apart: bool = False) -> list[str]:
    """Make ``module`` compute attention and experts by posexport's functions, and check that its outputs agree.

    A model with custom attention falls back to eager attention; with ``encoder_apart`` first its
    encoder alone.

    Returns:
        The remark that the model has custom attention, or nothing.

    Raises:
        PosexportError: the outputs differ, or are not deterministic.
    """
    with with_few_layers(module) as trial:
        return _remarks(label, module, trial, encoder_apart=encoder_apart)


def _remarks(label: str, module: TransformersModule, trial: TransformersModule, *, encoder_apart: bool) -> list[str]:
    """`use_posexport_attention`, which is compared in ``trial``: a few layers of a large ``module``, or itself."""
    # reference: eager attention and experts
    name = type(module.model).__name__
    reference = ReferenceOutputs(label, trial)
    attention.register()
    _use(module, trial)
    if not reference.first_difference():
        return []
    if encoder_apart:
        for model in {id(each): each.model for each in (module, trial)}.values():
            attention.use_apart(model.get_encoder(), attention="eager")
        if not reference.first_difference():
            return [f"the encoder of {name} {CUSTOM_ATTENTION}, of which posexport sees what is in the graph"]
    # custom attention: back to eager attention, with posexport's experts; any difference left is an error
    _use(module, trial, attention="eager")
    if output := reference.first_difference():
        if not reference.finite():
            raise PosexportError(
                f"{label}: {name} gives {output} that are no finite numbers for padded texts; it is not "
                "converted through transformers"
            )
        if ReferenceOutputs(label, trial).first_difference():
            raise PosexportError(
                f"{label}: {name} gives another {output} in every call, so it draws at random or keeps a "
                "state; it is not converted through transformers"
            )
        raise PosexportError(
            f"{label}: {name} gives another {output} with posexport's experts than with its own; it is not "
            "converted through transformers"
        )
    return [f"{name} {CUSTOM_ATTENTION}, of which posexport sees what is in the graph"]


def _use(module: TransformersModule, trial: TransformersModule, **implementations: str) -> None:
    """`attention.use` for both, which may be one."""
    attention.use(module.model, **implementations)
    if trial is not module:
        attention.use(trial.model, **implementations)
