"""The trace of a model with many equal layers: a few of them are traced, and their nodes repeated for the others.

Tracing takes a second or two a layer and is most of what a conversion costs, though layers of one kind differ in their
weights alone. Every three kinds that are adjacent in the model are traced. Two traced layers with equal layers
after them must have the same nodes; values at the same place in both then correspond, which tells how a repeated layer
is wired. A model for which this does not hold is traced as a whole. A proof compares the graph with the definition in
either case.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir
import torch
from onnx_ir.passes.common import DeduplicateInitializersPass
from torch import nn

from posexport.conversion.export.by_layers.lazy_initializers import make_lazy
from posexport.conversion.export.by_layers.levels import SMALL, Levels, UnlikeError, names_by_parameter
from posexport.conversion.export.by_layers.writer import Layer, Writer
from posexport.conversion.export.trace import trace
from posexport.proof.full_model.records import Stack
from posexport.proof.reduced.reduction import LARGE, Reduction, reduction_of, weights_of
from posexport.sources.lazy_parameters import materialize
from posexport.sources.source import Source
from posexport.sources.torch_fixes.exporter_output import without_exporter_output

#: what tells a small weight from the next
_STEP = 2.0**-10
#: layers less to trace that are worth it
_SAVED = 2


def few_layers(source: Source) -> dict[str, Reduction]:
    """By the file of each of its graphs: the model with the layers that are traced; empty: all are."""
    few = reduction_of(source, texts=True, traced=True) if weights_of(source) >= LARGE else ""
    if isinstance(few, str) or few.layers - few.kept < _SAVED:
        return {}
    traced = few.source.graphs
    lists = {source.module.get_submodule(path): stack for path, stack in few.stacks.items()}
    by_file = {}
    for file, graph in source.graphs.items():
        stacks = {path: lists[module] for path, module in graph.module.named_modules() if module in lists}
        if stacks and file in traced:
            by_file[file] = replace(few, full=graph, source=traced[file], stacks=stacks)
    return by_file


def trace_by_layers(few: Reduction, opset: int) -> ir.Model:
    """The graph of `posexport.conversion.export.trace.trace` for the full model of ``few``.

    Raises:
        NotTracedError, PosexportError: as `trace`.
    """
    try:
        return repeated(few, opset)
    except UnlikeError:
        materialize(few.full.module.parameters())
        return trace(few.full, opset)


def repeated(few: Reduction, opset: int) -> ir.Model:
    """The full model's graph from the trace of ``few``.

    Raises:
        UnlikeError: it does not say what the other layers are.
    """
    _tell_apart(few)
    model = trace(few.source, opset)
    levels = Levels(few, model.graph)
    writer = Writer(few, model, levels)
    for path in dict.fromkeys(stack for stack, _ in levels.of_layer):
        before = None
        for number, traced in enumerate(chosen_for(few.stacks[path])):
            layer = Layer(path, number, traced)
            writer.add(layer, before)
            before = layer
    full = writer.finished()
    with without_exporter_output():
        DeduplicateInitializersPass()(full)  # the exporter's last step
    make_lazy(full.graph, (few.full.module, few.source.module))
    return full


def _tell_apart(few: Reduction) -> None:
    """Give small weights of the traced layers other numbers, all different, in place.

    The exporter keeps equal ones once: norms that training left alone, or the layers of a seeded model.
    """
    module = few.source.module
    alone = ((names[0], p) for p, names in names_by_parameter(module).items() if len(names) == 1 and p.numel() <= SMALL)
    for number, (name, parameter) in enumerate(alone, 1):
        if any(name.startswith(f"{path}.") for path in few.stacks):
            owner, _, attribute = name.rpartition(".")
            other = nn.Parameter(torch.full_like(parameter, 1 + number * _STEP), requires_grad=False)
            setattr(module.get_submodule(owner), attribute, other)


def chosen_for(stack: Stack) -> Sequence[int]:
    """A traced layer for each of a stack's: the next one, or one that follows layers of the same kinds."""
    kinds, last = stack.reduced.kinds, len(stack.kept) - 1
    paths, seen = deque([[0]]), {(0, 0)}
    while paths:
        chosen = paths.popleft()
        number, at = len(chosen), chosen[-1]
        if number == len(stack.kinds):
            return chosen
        is_last = number == len(stack.kinds) - 1
        for traced in range(1, last + 1):
            same_pair = at < last and (kinds[traced - 1], kinds[traced]) == (kinds[at], kinds[at + 1])
            fits = kinds[traced] == stack.kinds[number] and (traced == last) == is_last and same_pair
            if fits and (number, traced) not in seen:
                seen.add((number, traced))
                paths.append([*chosen, traced])
    raise UnlikeError
