"""Compares a module with its copy that has encodings of posexport, in float64 at two lengths.

Constants of a submodule are float32 where its ``__init__`` computed them so: RoPE frequencies, slopes, a table of sines
of angles with one rounding error per radian. How far that moves the outputs is measured by rounding them in another
direction, and is allowed in addition to the rounding of float64.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE
from posexport.errors import PosexportError
from posexport.modules.copied import copied
from posexport.modules.replaced.calls import Call, recorded
from posexport.modules.replaced.stand_ins import StandIn
from posexport.modules.user_module import UserModule
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.module_precision import in_precision

#: tokens of the two calls, where the module accepts as many; rows of the batch
_SHORT, _LONG, _BATCH = 17, 150, 3
#: allowed errors: in eps of float64 of the largest value; in multiples of the measured effect of rounded constants
_ROUNDINGS, _OF_CONSTANTS = 256, 4.0


class Reference:
    """A user's module in float64: its outputs at two lengths, and its calls of the submodules called ``names``."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        assert isinstance(source.module, UserModule)
        self.source, self.names, self.name = source, names, source.name
        self.module = in_precision(copied(source.name, source.module), torch.float64)
        traced = axis_sizes(source.inputs, source.limits.trace_sizes)
        if SEQUENCE not in traced:
            raise PosexportError(
                f"{source.name}: no axis of its inputs varies with the number of tokens, so that nothing can be told "
                "of its positions; give axes of tokens, not of images"
            )
        self.sizes = [self._sized(traced, length) for length in (_SHORT, _LONG)]
        self.outputs, self.calls = [], []
        for sizes in self.sizes:
            with recorded({name: self.part(name) for name in names}) as calls:
                self.outputs.append(self.run(self.module, sizes))
            self.calls.append(calls)
        if self.sizes[0][SEQUENCE] == self.sizes[1][SEQUENCE]:
            raise PosexportError(
                f"{source.name} takes {self.sizes[0][SEQUENCE]} tokens alone; replace compares at two lengths"
            )

    def part(self, name: str) -> nn.Module:
        """A submodule of the float64 copy."""
        module = self.module.module
        assert isinstance(module, nn.Module)
        return module.get_submodule(name)

    def run(self, module: nn.Module, sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
        """The outputs for drawn inputs of these sizes."""
        tensors = example(self.source.inputs, dict(sizes))
        wide = {name: x.double() if x.is_floating_point() else x for name, x in tensors.items()}
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = module(**wide)
        return outputs

    def _sized(self, traced: Mapping[str, int], length: int) -> dict[str, int]:
        limits = self.source.limits
        longest = limits.max_length or length
        step = limits.size_steps.get(SEQUENCE, 1)
        tokens = max(min(multiple(length, step), longest // step * step), limits.min_length)
        other = min(max(tokens - 4, 1), longest)
        chosen = {SEQUENCE: tokens, ENCODER_SEQUENCE: other, BATCH: _BATCH}
        return {name: chosen.get(name, size) for name, size in traced.items()}


def check(reference: Reference, stand_ins: Mapping[str, tuple[Sequence[str], StandIn]]) -> None:
    """Compares every replacement with its submodule, by label, and the whole modules.

    Raises:
        PosexportError: values or shapes differ.
    """
    whole = copy.deepcopy(reference.module)
    inner = whole.module
    assert isinstance(inner, nn.Module)
    for label, (names, stand_in) in stand_ins.items():
        wide = copy.deepcopy(stand_in).double()
        original = reference.part(names[0])
        for sizes, calls in zip(reference.sizes, reference.calls, strict=True):
            for call in calls[names[0]]:
                _compare(label, wide, original, call, sizes)
        for name in names:
            parent, _, leaf = name.rpartition(".")
            setattr(inner.get_submodule(parent), leaf, wide)
    for sizes, outputs in zip(reference.sizes, reference.outputs, strict=True):
        with _rounded_otherwise([reference.part(name) for name in reference.names], sizes[SEQUENCE]):
            moved = reference.run(reference.module, sizes)
        _agree(
            f"{reference.name} with {', '.join(stand_in.encoding.name for _, stand_in in stand_ins.values())}",
            "the original",
            reference.run(whole, sizes),
            outputs,
            moved,
            sizes,
        )


def _compare(label: str, stand_in: StandIn, original: nn.Module, call: Call, sizes: Mapping[str, int]) -> None:
    """Compares one call of a submodule with its replacement."""

    def outputs(module: nn.Module) -> tuple[Any, ...]:
        with torch.no_grad(), computing_in(torch.float64):
            output = module(*call.args, **call.kwargs)
        return tuple(output) if isinstance(output, tuple | list) else (output,)

    with _rounded_otherwise([original], sizes[SEQUENCE]):
        moved = outputs(original)
    _agree(stand_in.encoding.name, label, outputs(stand_in), call.outputs, moved, sizes)


@contextmanager
def _rounded_otherwise(parts: Sequence[nn.Module], length: int) -> Iterator[None]:
    """Inside the block buffers of ``parts`` are as another rounding to float32 might have left them.

    Tables are moved by the rounding of the angles of ``length`` positions.
    """
    buffers = list({id(x): x for submodule in parts for x in submodule.buffers() if x.is_floating_point()}.values())
    before = [x.clone() for x in buffers]
    generator = torch.Generator().manual_seed(0)
    try:
        for x in buffers:
            sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
            size = x.abs().amax() * min(length, max(x.shape)) if x.squeeze().ndim > 1 else x.abs()
            x.add_(sign * size * torch.finfo(torch.float32).eps / 2)
        yield
    finally:
        for x, old in zip(buffers, before, strict=True):
            x.copy_(old)


def _agree(
    what: str,
    other: str,
    new: Sequence[Tensor],
    old: Sequence[Tensor],
    moved: Sequence[Tensor],
    sizes: Mapping[str, int],
) -> None:
    at = f"at length {sizes[SEQUENCE]}"
    for replaced, theirs, rounded in zip(
        *([x.detach() for x in outputs] for outputs in (new, old, moved)), strict=True
    ):
        if replaced.shape != theirs.shape:
            raise PosexportError(
                f"{what} returns {list(replaced.shape)} {at}, and {other} {list(theirs.shape)}; {_REMEDY}"
            )
        largest = float(theirs.abs().max())
        allowed = _ROUNDINGS * torch.finfo(torch.float64).eps * largest
        allowed += _OF_CONSTANTS * float((rounded - theirs).abs().max())
        error = float((replaced - theirs).abs().max())
        if not error <= allowed:
            raise PosexportError(
                f"{what} and {other} differ by {error:.2g} {at}, where values are up to {largest:.2g} and rounding "
                f"explains {allowed:.1g}; {_REMEDY}"
            )


_REMEDY = "give the settings with which they are the same, or must_agree=False to change the model on purpose"
