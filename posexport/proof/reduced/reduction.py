"""A reduced model: a few layers of a source, with their weights, and the first words of its vocabulary.

What a grid finds in a transformer it finds in one layer of each kind: encodings, masks, caches, lengths and lowerings
act inside a layer. The layers are chosen so that every pair of kinds that are adjacent in the full model is adjacent in
the reduced one too, so that each layer of the full graph can be compared with one of the reduced graph, inputs included
(`posexport.proof.full_model`).
"""

import copy
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import msgspec
from torch import Tensor, nn

from posexport.base.spec import CARRIED, InputSpec, OutputSpec
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.models.definition import Definition
from posexport.nn.config import Config
from posexport.proof.full_model.records import NotComparableError, Stack
from posexport.proof.full_model.weights import Words
from posexport.proof.references.precision_copy import fingerprint
from posexport.sources.lazy_parameters import first_values
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Source

#: weights from which on a model is traced and proven by a few of its layers
LARGE = 16_000_000
#: rows of embeddings and head that a reduced model has
WORDS = 1024
#: ways through the kinds of layers that are tried
_MOST_WALKS = 20_000
#: how attributes end that have numbers of layers
_OF_NUMBERS = ("_indexes", "_indices", "_idxs")
#: attributes in which layers of one kind may differ: PyTorch's, and those that say which layer it is
_NOT_COMPARED = {*vars(nn.Module()), "index", "layer_idx", "layer_index"}


@runtime_checkable
class Reducible(Protocol):
    """A definition around another library's model, which can be called with a few of its layers."""

    vocab: int

    def reduced_to(self, vocab: int) -> None:
        """Record the layers again, for a vocabulary of ``vocab`` ids.

        Raises:
            NotComparableError: parts of it are made for the number of its layers.
        """


@dataclass(frozen=True)
class Reduction:
    """A source and a reduced model of it.

    Attributes:
        full: the source.
        source: the reduced model, which shares its weights.
        stacks: its layers by kind, and those that the reduced model has, by the path of their ``nn.ModuleList``.
        words: entries of the vocabulary in the full and the reduced model; None: not reduced.
    """

    full: Source
    source: Source
    stacks: Mapping[str, Stack]
    words: Words | None

    @property
    def layers(self) -> int:
        """How many layers the full model has."""
        return sum(len(stack.kinds) for stack in self.stacks.values())

    @property
    def kept(self) -> int:
        """How many layers the reduced model has."""
        return sum(len(stack.kept) for stack in self.stacks.values())


def weights_of(source: Source) -> int:
    """How many elements the parameters have; tied ones count once."""
    return sum(parameter.numel() for parameter in source.module.parameters())


def reduction_of(
    source: Source, *, texts: bool = False, traced: bool = False, each: int | None = None
) -> Reduction | str:
    """The reduced model of ``source``, or why there is none.

    ``texts``: it reads real texts and has all words. ``traced``: its layers are repeated for the others. ``each``: as
    in `leave_out_layers`.
    """
    if not isinstance(source.module, Definition) or (source.by_trial and not isinstance(source.module, Reducible)):
        return "its layers are not known to posexport"
    if any(getattr(each, "layer_outputs", ()) for each in source.module.modules()):
        return "its outputs (--outputs) are of layers by their numbers"
    if [spec.name for spec in source.inputs] != [spec.name for spec in source.module.inputs]:
        return "its layout has other inputs"
    module = copy_with_same_weights(source.module)
    stacks = leave_out_layers(module, traced=traced, each=each)
    if isinstance(stacks, str):
        return stacks
    words = None if texts else _reduce_vocabulary(module, source.inputs)
    if isinstance(module, Reducible):
        try:
            module.reduced_to(module.vocab if words is None else words.reduced)
        except NotComparableError as err:
            return str(err)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as err:
            if words is not None:  # its code may look up the token of an image, which is beyond the first words
                return reduction_of(source, texts=True, traced=traced, each=each)
            return f"with a few of its layers it fails: {type(err).__name__}: {err}"
    return Reduction(source, _source(source, module, words), stacks, words)


def leave_out_layers(
    module: nn.Module,
    *,
    traced: bool = False,
    each: int | None = None,
    like: Mapping[int, Sequence[int]] | None = None,
) -> dict[str, Stack] | str:
    """Leave a few layers of each kind in ``module``; its lists of layers by path, or why none can be left out.

    ``each``: the first so many of each kind, whatever follows what. ``like``: those of another module with the same
    parameters (`kept_of`), whatever the kinds.
    """
    stacks: dict[str, Stack] = {}
    for path, stack in _stacks(module):
        owner = module.get_submodule(path.rpartition(".")[0])
        numbers = _numbers(owner)
        if any(len(of) == len(stack) for of in numbers.values()):
            continue  # one module for each layer of such a list
        kinds = [(kind_of(layer), _named(owner, numbers, at)) for at, layer in enumerate(stack)]
        if like is not None:
            indices = like.get(id(next(stack.parameters(), None)))
        else:
            indices = chosen(kinds, traced=traced) if each is None else _first(kinds, each)
        if indices is None:
            continue
        if (reason := _keep(owner, path.rpartition(".")[2], indices)) is not None:
            return reason
        stacks[path] = Stack([str(kinds.index(kind)) for kind in kinds], indices)
    return stacks or "it has no stack of equal layers"


def kept_of(module: nn.Module, stacks: Mapping[str, Stack]) -> dict[int, Sequence[int]]:
    """The layers that a reduced ``module`` has, by the identity of the first parameter of the first one."""
    return {id(next(module.get_submodule(path).parameters(), None)): stack.kept for path, stack in stacks.items()}


def _stacks(module: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """The outermost lists of three modules or more."""
    paths: list[str] = []
    for path, submodule in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in paths)
        if isinstance(submodule, nn.ModuleList) and len(submodule) > 2 and not inside:
            paths.append(path)
            yield path, submodule


def _numbers(owner: nn.Module) -> dict[str, list[int]]:
    """The lists of numbers of layers that a model keeps, as of those with attention to a whole image."""
    lists = {name: value for name, value in vars(owner).items() if name.endswith(_OF_NUMBERS)}
    return {name: [*value] for name, value in lists.items() if isinstance(value, list | tuple)}


def _named(owner: nn.Module, numbers: Mapping[str, list[int]], layer: int) -> tuple[object, ...]:
    """What the lists ``numbers`` of ``owner`` say of a layer: which it is of those with a module each, else whether."""
    modules = {len(each) for each in owner.children() if isinstance(each, nn.ModuleList)}
    return tuple((name, of.index(layer) if len(of) in modules else True) for name, of in numbers.items() if layer in of)


def kind_of(layer: nn.Module) -> tuple[Any, ...]:
    """Equal for layers that differ in the values of their parameters alone."""
    return tuple(
        (
            path,
            type(submodule),
            tuple(
                (name, _simple(value)) for name, value in sorted(vars(submodule).items()) if name not in _NOT_COMPARED
            ),
            tuple((name, tuple(p.shape)) for name, p in submodule.named_parameters(recurse=False)),
            tuple((name, fingerprint([b.numpy()])) for name, b in submodule.named_buffers(recurse=False)),
            tuple(_simple(hook) for hook in vars(submodule)["_forward_hooks"].values()),
        )
        for path, submodule in layer.named_modules()
    )


def _simple(value: object) -> str:
    """Text that is equal for equal settings."""
    known = isinstance(value, int | float | str | tuple | list | type(None)) or is_dataclass(value)
    return repr(value) if known else str(getattr(value, "__qualname__", type(value).__qualname__))


def chosen(kinds: Sequence[object], *, traced: bool = False) -> list[int] | None:
    """Indices of layers with all adjacent pairs of kinds, the first and the last among them; None: all are needed.

    A kind of several layers occurs twice: passes treat values that layers share differently from those of one layer.
    ``traced``: with all of three adjacent layers, since a repeated layer is wired to those before and behind it.
    """
    if traced:
        kinds = [*zip(kinds, [*kinds[1:], None], strict=True)]
    indices = _walk(kinds)
    return None if indices is None or len(indices) == len(kinds) else indices


def _first(kinds: Sequence[object], each: int) -> list[int] | None:
    """Indices of the first ``each`` layers of every kind; None: all are needed."""
    indices = [at for at, kind in enumerate(kinds) if [*kinds[:at]].count(kind) < each]
    return None if len(indices) == len(kinds) else indices


def _walk(kinds: Sequence[object]) -> list[int] | None:
    """The fewest indices from the first layer to the last that `chosen` asks for, the layer before the last included.

    What follows the last layer may read the one before it. None: too many kinds take turns to find them.
    """
    last, after = len(kinds) - 1, dict[object, set[object]]()
    for one, other in pairwise(kinds):
        after.setdefault(one, set()).add(other)
    needed = {kind: min(2, count) for kind, count in Counter(kinds).items()}
    paths, seen = deque([[0]]), dict[object, int]()
    while paths and len(seen) < _MOST_WALKS:
        path = paths.popleft()
        walked = [kinds[index] for index in path]
        counts = Counter(walked)
        if path[-1] == last:
            whole = set(pairwise(walked)) == set(pairwise(kinds)) and all(
                counts[kind] >= needed[kind] for kind in needed
            )
            if whole and walked[-2:] == [*kinds[-2:]]:
                return path
            continue
        state = (walked[-1], frozenset(pairwise(walked)), frozenset((kind, min(2, counts[kind])) for kind in counts))
        if path[-1] >= seen.get(state, len(kinds)):  # by no more layers, which end no later
            continue
        seen[state] = path[-1]
        following = {
            next((at for at in range(path[-1] + 1, last) if kinds[at] == kind), last) for kind in after[walked[-1]]
        }
        paths += [[*path, at] for at in sorted({*following, last}) if kinds[at] in after[walked[-1]]]
    return None


def _keep(owner: nn.Module, name: str, indices: Sequence[int]) -> str | None:
    """Leave the layers ``indices`` of ``owner``, and what it keeps for each of them; why it cannot be done."""
    stack = getattr(owner, name)
    numbers = _numbers(owner)
    for attribute, of in numbers.items():
        setattr(owner, attribute, [indices.index(layer) for layer in of if layer in indices])
    for attribute, value in vars(owner).items():
        if isinstance(value, list) and len(value) == len(stack) and attribute not in numbers:
            setattr(owner, attribute, [value[index] for index in indices])
    config = getattr(owner, "config", None)
    if isinstance(config, Config):
        if getattr(config, "layers", None) != len(stack) or getattr(config, "layer_groups", None) is not None:
            return "its layers share weights"
        vars(owner)["config"] = config.changed(layers=len(indices))
    elif hasattr(config, "num_hidden_layers"):
        _renumber(owner, stack, indices)
    setattr(owner, name, nn.ModuleList(stack[index] for index in indices))
    return None


def _renumber(owner: nn.Module, stack: nn.ModuleList, indices: Sequence[int]) -> None:
    """Let a model of transformers, its configuration and its layers count the layers ``indices`` alone."""
    config: Any = owner.config
    few = copy.copy(config)
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == len(stack):
            vars(few)[name] = type(value)(value[index] for index in indices)
    few.num_hidden_layers = len(indices)
    for submodule in owner.modules():
        if vars(submodule).get("config") is config:
            vars(submodule)["config"] = few
    for number, index in enumerate(indices):
        for submodule in stack[index].modules():
            if vars(submodule).get("layer_idx") == index:
                vars(submodule)["layer_idx"] = number


def _reduce_vocabulary(module: nn.Module, inputs: Sequence[InputSpec]) -> Words | None:
    """Leave the first `WORDS` rows of tables and heads of a large vocabulary; the sizes before and after."""
    sizes = {spec.size for spec in inputs if spec.role == "tokens"}
    vocab = next(iter(sizes)) if len(sizes) == 1 else None
    if vocab is None or vocab < 2 * WORDS:
        return None
    first: dict[int, nn.Parameter] = {}
    for submodule in module.modules():
        if isinstance(submodule, nn.Embedding) and submodule.num_embeddings == vocab:
            submodule.num_embeddings = WORDS
            submodule.padding_idx = None  # of training alone
        elif isinstance(submodule, nn.Linear) and submodule.out_features == vocab:
            submodule.out_features = WORDS
        for name, parameter in list(submodule.named_parameters(recurse=False)):
            if len(parameter) == vocab:
                few = first_values(parameter, WORDS).to(MODEL_DTYPE.torch)
                rows = first.setdefault(id(parameter), nn.Parameter(few, requires_grad=False))
                setattr(submodule, name, rows)
        config = getattr(submodule, "config", None)
        if isinstance(config, Config) and getattr(config, "vocab", None) == vocab:
            padding_id = min(config.padding_id, WORDS - 1)  # type: ignore[attr-defined]
            vars(submodule)["config"] = config.changed(vocab=WORDS, padding_id=padding_id)
        if isinstance(specs := vars(submodule).get("outputs"), list):
            vars(submodule)["outputs"] = [_narrowed(spec, vocab) for spec in specs]
    return Words(vocab, WORDS)


def _narrowed(spec: OutputSpec, vocab: int) -> OutputSpec:
    return msgspec.structs.replace(spec, axes=[WORDS if axis == vocab else axis for axis in spec.axes])


def _source(full: Source, module: Definition, words: Words | None) -> Source:
    """``full`` with the reduced module, and the inputs and outputs of that module."""
    # options may have changed what the definition says: sizes of positions, names
    known = {spec.name: spec for spec in full.inputs}
    inputs = [spec if spec.role in CARRIED else _of_words(known.get(spec.name, spec), words) for spec in module.inputs]
    return msgspec.structs.replace(
        full, module=module.eval(), inputs=inputs, outputs=module.outputs, parts=module.parts, files={}
    )


def _of_words(spec: InputSpec, words: Words | None) -> InputSpec:
    if words is None or spec.role != "tokens":
        return spec
    return msgspec.structs.replace(spec, size=words.reduced, padding=min(spec.padding, words.reduced - 1))


def parameters_of(module: nn.Module, stacks: Iterable[str] = ()) -> dict[str, Tensor]:
    """All parameters by name; tied ones by each of theirs, those of a layer by the paths of ``stacks`` alone."""
    lists = {module.get_submodule(path): path for path in stacks}
    every = module.named_modules(remove_duplicate=False)
    others = tuple(f"{path}." for path, submodule in every if lists.get(submodule, path) != path)
    parameters = module.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in parameters if not name.startswith(others)}
