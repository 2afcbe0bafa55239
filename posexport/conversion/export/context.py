"""The context of passes from a source: inputs, bounds, attention recognised in the trace, and sample inputs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from posexport.base.bounds import bounds_of
from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, CAPACITY, ENCODER_SEQUENCE, PAST, SEQUENCE, TOTAL, Limits
from posexport.base.targets.target import Target
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source, TracedModule

#: the longest input that masks are looked at for: of a module without a limit, and at most
_LONGEST, _MOST = 1024, 4096


def of_source(source: Source, target: Target, lowering: str = "auto", output_names: Sequence[str] = ()) -> Context:
    """The context of a graph of ``source`` for ``target``, with its outputs called ``output_names``."""
    modules = (
        [module for module in source.module.modules() if isinstance(module, TracedModule)] if source.by_trial else []
    )
    traced = PassResult.of([reason for module in modules for reason in module.attentions])
    return Context(
        target,
        lowering,
        inputs=source.inputs,
        output_names=output_names,
        bounds=bounds_of(source.limits),
        traced_attention=traced if modules else None,
        feeds=partial(_samples, source),
    )


def _samples(source: Source) -> list[Mapping[str, NDArray[Any]]]:
    """Inputs of several sizes, a short row and a long one padded on either side."""
    limits = source.limits
    longest = _longest(limits)
    traced = axis_sizes(source.inputs, limits.trace_sizes)
    sequences = [name for name in traced if name in (SEQUENCE, ENCODER_SEQUENCE)]
    samples: list[Mapping[str, NDArray[Any]]] = []
    for index, (batch, length) in enumerate(((3, min(7, longest)), (2, min(33, longest)), (1, longest))):
        sizes = traced | (limits.proof_sizes[index % len(limits.proof_sizes)] if limits.proof_sizes else {})
        sizes |= {name: batch for name in (BATCH,) if name in traced}
        sizes |= {name: _taken(limits, name, length - at) for at, name in enumerate(sequences)}
        if TOTAL in traced:
            if limits.max_length is not None:  # past tokens and new ones together
                sizes[SEQUENCE] = max(min(sizes[SEQUENCE], limits.max_length - sizes.get(PAST, 0)), 1)
            sizes[TOTAL] = sizes[SEQUENCE] + sizes.get(PAST, 0)
            sizes |= {CAPACITY: sizes[TOTAL]} if CAPACITY in traced else {}
        feeds = {name: tensor.numpy() for name, tensor in example(source.inputs, sizes).items()}
        for spec in source.inputs:
            if spec.role == "mask" and batch > 1:
                _pad(feeds[spec.name], spec.padding)
            elif spec.role == "lengths":
                feeds[spec.name][-1] -= feeds[spec.name][-1] // 3
        samples.append(feeds)
    return samples


def _taken(limits: Limits, axis: str, size: int) -> int:
    """The nearest size from ``size`` on that an axis takes, or the largest one below."""
    step = limits.size_steps.get(axis, 1)
    least = max(limits.min_length if axis == SEQUENCE else 1, limits.min_sizes.get(axis, 1), size)
    return min(multiple(least, step), max(_longest(limits) // step * step, step))


def _longest(limits: Limits) -> int:
    return _LONGEST if limits.max_length is None else min(limits.max_length, _MOST)


def _pad(mask: NDArray[Any], padding: int) -> None:
    """Drop the first third of the first row's tokens, and the last third of the last one's."""
    third = mask.shape[-1] // 3
    mask[0, ..., :third] = padding
    mask[-1, ..., mask.shape[-1] - third :] = padding
