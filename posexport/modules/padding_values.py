"""Which value of a mask marks padding: 0, as in ``attention_mask``, or 1, as in ``src_key_padding_mask``.

Both are in use, and names do not tell. The module does: what it computes for other tokens does not depend on the tokens
that the mask excludes. A bool that excludes none either way is a flag of its tokens, and no mask.
"""

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import SAMPLES, Axis, InputSpec
from posexport.errors import PosexportError
from posexport.modules.call import CallError, call

#: the difference by rounding that is allowed, relative to the largest element
_ROUNDING = 1e-4


def with_padding_values(
    module: nn.Module, specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]
) -> tuple[list[InputSpec], list[str]]:
    """``specs`` with the value of padding of every mask, from calls of ``module`` with the example ``tensors``.

    The second result has a remark for every mask that marks padding, and for every bool that is no mask. A mask of
    samples is taken as it is: padding is behind a sound, so that a mask of its other end shows nothing.
    """
    classified, remarks = [], []
    for spec in specs:
        asked = spec.role == "mask" and spec.axes[-1] != SAMPLES
        new = _classified(module, spec, specs, tensors) if asked else spec
        classified.append(new)
        if new.role == "flags":
            remarks.append(f"input {spec.name} masks no tokens: the proof draws its values at random")
        elif new.role == "mask" and new.padding:
            remarks.append(f"input {spec.name} marks padding: 1 is a padded token, 0 one that is attended to")
    return classified, remarks


def _classified(
    module: nn.Module, spec: InputSpec, specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]
) -> InputSpec:
    """The input of a mask with the role and the value of padding that calls show."""
    is_bool, mask = spec.dtype == "bool", tensors[spec.name]
    by_name = msgspec.structs.replace(spec, padding=int(is_bool and "pad" in spec.name))
    by_name = msgspec.structs.replace(by_name, role="values" if mask.is_floating_point() else by_name.role)
    length, axis = mask.shape[-1], spec.axes[-1]
    inputs_of_tokens = [other for other in specs if other.role != "mask" and axis in other.axes]
    if is_bool and not isinstance(axis, str):
        return msgspec.structs.replace(spec, role="flags")
    if length < 3 or not isinstance(axis, str) or not inputs_of_tokens:
        return by_name
    # the last tokens are marked; then tokens that are marked, or those that are not, become others
    last = torch.arange(length) >= length - max(1, length // 3)

    def ignores(marked: Tensor, changed: Tensor) -> bool | None:
        example = {**tensors, spec.name: marked.to(mask.dtype).expand(mask.shape).clone()}
        return _ignores(module, inputs_of_tokens, axis, example, changed)

    marks_padding, keeps = ignores(last, last), ignores(last, ~last)
    if marks_padding is None or keeps is None:
        return by_name
    if marks_padding and keeps:  # what is left out hardly counts: attention to nothing gives NaN
        nothing = [_gives_nan(module, {**tensors, spec.name: torch.full_like(mask, value)}) for value in (0, 1)]
        return by_name if nothing[0] == nothing[1] else msgspec.structs.replace(spec, padding=int(nothing[1]))
    if marks_padding and is_bool and not any(word in spec.name for word in ("mask", "pad")):
        # where no token sees later ones, the last are ignored unmarked too, and the first ones tell
        marks_padding = not ignores(torch.zeros_like(last), last) or ignores(last.flip(0), last.flip(0))
    if not marks_padding and not keeps:
        return msgspec.structs.replace(spec, role="flags") if is_bool else by_name
    return msgspec.structs.replace(spec, padding=int(bool(marks_padding)))


def _gives_nan(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    outputs = _outputs(module, tensors) or {}
    return any(bool(tensor.isnan().any()) for tensor in outputs.values())


def _ignores(
    module: nn.Module,
    inputs_of_tokens: Sequence[InputSpec],
    axis: Axis,
    example: Mapping[str, Tensor],
    tokens: Tensor,
) -> bool | None:
    """Whether outputs of the other tokens do not depend on ``tokens`` [T]; None where a call fails."""
    before = _outputs(module, example)
    changed = {spec.name: _changed(example[spec.name], spec, axis, tokens) for spec in inputs_of_tokens}
    after = _outputs(module, {**example, **changed})
    if before is None or after is None:
        return None
    return all(_same(before[name], after.get(name), ~tokens) for name in before)


def _changed(tensor: Tensor, spec: InputSpec, axis: Axis, tokens: Tensor) -> Tensor:
    """Returns ``tensor`` with other values at ``tokens``."""
    generator = torch.Generator().manual_seed(0)
    if tensor.is_floating_point():
        other = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    else:
        other = (spec.size or 2) - 1 - tensor if tensor.dtype != torch.bool else ~tensor
    shape = [len(tokens) if number == spec.axes.index(axis) else 1 for number in range(tensor.dim())]
    return torch.where(tokens.reshape(shape), other, tensor)


def _outputs(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    try:
        return call(module, tensors)
    except (CallError, PosexportError):
        return None


def _same(before: Tensor, after: Tensor | None, compared: Tensor) -> bool:
    """Whether an output is the same at the tokens ``compared``, if its second axis is the tokens'; else all of it."""
    if after is None or before.shape != after.shape:
        return False
    if before.dim() > 1 and before.shape[1] == len(compared):
        before, after = before[:, compared], after[:, compared]
    if not before.is_floating_point():
        return torch.equal(before, after)
    limit = _ROUNDING * float(before.nan_to_num(neginf=0.0).abs().max())
    return torch.allclose(before, after, rtol=0, atol=limit, equal_nan=True)
