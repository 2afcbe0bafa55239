"""Stacks LoRA adapters and puts them into a model, so that each row of a batch chooses one.

Shape letters: I inputs, O outputs, R rank, N adapters and none.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from posexport.checkpoints.adapter import Adapter, Change, Product
from posexport.checkpoints.assign import Names
from posexport.checkpoints.mapping import Origin, Plan, Scale, SplitFused, Transform, Transpose
from posexport.checkpoints.weights import Weights
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.with_adapters import WithAdapters
from posexport.nn.adapted import AdaptedEmbedding, AdaptedLinear

#: A [I, R], and B [R, O] with the factor in it
Pair = tuple[Tensor, Tensor]
#: by the path of the linear layer or the embedding
Pairs = dict[str, Pair]
#: steps from a file's weight to a parameter that can be made with B alone
_OF_ROWS = (SplitFused, Scale)


def with_adapters(plan: Plan, weights: Weights, names: Names, adapters: Mapping[str, Adapter]) -> Plan:
    """The plan with adapters in its definition, which has its weights; ``adapters``: by their names.

    Raises:
        PosexportError: one changes what no linear layer of the definition computes, or there are several graphs.
    """
    if not adapters:
        return plan
    if plan.model.parts:
        raise PosexportError(
            "--adapters is for encoders and decoders that are one graph, this model is several; leave it out, and "
            "convert each adapter's folder, which merges it"
        )
    pairs = [_pairs(plan, weights, names, adapter) for adapter in adapters.values()]
    _put(plan.model, pairs)
    return replace(plan, model=WithAdapters(plan.model, list(adapters)))


def put_into(model: nn.Module, adapters: Iterable[Adapter]) -> None:
    """Put adapters into a model of transformers, by the names of its parameters, in place.

    Raises:
        PosexportError: one changes what no linear layer or embedding of the model computes.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    shapes = {name: list(parameter.shape) for name, parameter in parameters.items()}
    pairs: list[Pairs] = []
    for adapter in adapters:
        pairs.append({})
        for name, change in adapter.matched(shapes, new=False).items():
            product = _product(change, adapter, name)
            for path in _owners(model, parameters[name], product, adapter, name):
                pairs[-1][path] = _as_pair(*_factors(product), product)
    _put(model, pairs)


def _product(change: Change, adapter: Adapter, stored: str) -> Product:
    if isinstance(change, Product):
        return change
    raise _refused(adapter, stored, "is replaced as a whole (modules_to_save, bias), which no row can choose")


def _put(model: nn.Module, pairs: Sequence[Pairs]) -> None:
    """Put adapters into a model's linear layers and embeddings, in place; ``pairs``: of each adapter."""
    for path in dict.fromkeys(path for by_path in pairs for path in by_path):
        module, stacks = model.get_submodule(path), _stacked([by_path.get(path) for by_path in pairs])
        if isinstance(module, nn.Embedding):
            model.set_submodule(path, AdaptedEmbedding.of(module, *stacks))
        else:
            assert isinstance(module, nn.Linear)
            model.set_submodule(path, AdaptedLinear.of(module, *stacks))


def _stacked(pairs: Sequence[Pair | None]) -> tuple[Tensor, Tensor]:
    """A [N, I, R] and B [N, R, O]: zeros at 0 and where an adapter has no pair or a smaller rank."""
    present = [pair for pair in pairs if pair is not None]
    rank = max(len(b_RO) for _, b_RO in present)
    a_IR, b_RO = present[0]
    a_NIR, b_NRO = torch.zeros(len(pairs) + 1, len(a_IR), rank), torch.zeros(len(pairs) + 1, rank, b_RO.shape[1])
    for number, pair in enumerate(pairs, 1):
        if pair is not None:
            a_IR, b_RO = pair
            a_NIR[number, :, : len(b_RO)], b_NRO[number, : len(b_RO)] = a_IR, b_RO
    return a_NIR, b_NRO


def _pairs(plan: Plan, weights: Weights, names: Names, adapter: Adapter) -> Pairs:
    """A and B of each module that an adapter changes; PosexportError for a change of anything else."""
    changes = adapter.matched(weights.shapes, new=False)
    origins: dict[str, list[tuple[str, Origin]]] = defaultdict(list)
    for parameter, origin in plan.origins.items():
        for name in origin.names:
            if name in names.stored:
                origins[names.stored[name]].append((parameter, origin))
    pairs: Pairs = {}
    for stored, change in changes.items():
        product = _product(change, adapter, stored)
        if stored not in origins:
            raise _refused(adapter, stored, "is not computed for this task")
        for parameter, origin in origins[stored]:
            for path in _owners(plan.model, plan.model.get_parameter(parameter), product, adapter, stored):
                pairs[path] = _through(origin, product, adapter, stored)
    return pairs


def _owners(model: nn.Module, weight: nn.Parameter, change: Product, adapter: Adapter, stored: str) -> list[str]:
    """The paths of the linear layers, or of the embeddings, that have ``weight``; PosexportError if others read it."""
    kind = nn.Embedding if change.embedding else nn.Linear
    having = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if any(parameter is weight for parameter in module.parameters(recurse=False))
    }
    paths = [path for path, module in having.items() if type(module) is kind]
    unknown = [module for module in having.values() if type(module) not in (nn.Linear, nn.Embedding)]
    encodings = [path for path, module in model.named_modules() if isinstance(module, Encoding)]
    if not paths or unknown or any(path.startswith(f"{encoding}.") for path in paths for encoding in encodings):
        raise _refused(adapter, stored, "is not the weight of linear layers, or embeddings, of tokens alone")
    return paths


def _through(origin: Origin, change: Product, adapter: Adapter, stored: str) -> Pair:
    """A and B of the parameter that is made of the changed weight."""
    left, right = _factors(change)
    for step in origin.transforms:
        if isinstance(step, Transpose):
            left, right = right.T, left.T
        elif isinstance(step, _OF_ROWS):
            left = _rows(step, left)
        else:
            raise _refused(adapter, stored, "is changed on its way into the model")
    return _as_pair(left, right, change)


def _factors(change: Product) -> tuple[Tensor, Tensor]:
    """Two matrices; their product is added to the weight as it is stored."""
    left, right = change.scale * change.b_OR.double(), change.a_RI.double()
    return (right.T, left.T) if change.transposed else (left, right)


def _as_pair(left: Tensor, right: Tensor, change: Product) -> Pair:
    """A and B of a product that is added to the weight of a linear layer, [O, I], or of an embedding, [V, O]."""
    return (left.float(), right.float()) if change.embedding else (right.T.float(), left.T.float())


def _rows(step: Transform, left: Tensor) -> Tensor:
    """``step`` of a matrix by its rows."""
    if isinstance(step, Scale):
        return left * step.factor
    assert isinstance(step, SplitFused)
    rows = left.shape[0] // step.parts * step.width
    return step.apply(left, [rows, left.shape[1]], lambda _: left)


def _refused(adapter: Adapter, stored: str, why: str) -> PosexportError:
    """The error for a change that rows cannot choose."""
    return PosexportError(
        f"{adapter.label} changes {stored}, which {why}; --adapters takes LoRA of linear layers and embeddings: leave "
        "this adapter out, and convert its folder, which merges it"
    )
