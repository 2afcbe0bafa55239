"""Compares the graph of a full model with that of its reduced model, layer by layer."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from posexport.proof.full_model.digests import Digest, Digests, Key
from posexport.proof.full_model.records import NotComparableError, StructureError
from posexport.proof.full_model.regions import SHARED, family, number_of

#: nodes behind one another that values are told apart by
_DEEPEST = 8


def expected(reduced: Digests) -> dict[Key, list[Digest]]:
    """The reduced model's regions by what they must be alike in."""
    by_key: dict[Key, list[Digest]] = {}
    for digest in reduced.by_region.values():
        by_key.setdefault(digest.key, []).append(digest)
    return by_key


def digests_of(full: Digests, reduced: Digests) -> None:
    """Compute both.

    Raises:
        NotComparableError: values of a layer that others read cannot be told apart.
    """
    for depth in range(1, _DEEPEST + 1):
        apart = reduced.compute(depth, {})
        hashes = {key: set().union(*(each.nodes.values() for each in same)) for key, same in expected(reduced).items()}
        if full.compute(depth, hashes) and apart:
            return
    raise NotComparableError("values that a layer reads of the layer before it cannot be told apart")


def compare(full: Digests, reduced: Digests) -> None:
    """Raises StoredError where a layer of ``full`` is not what its kind is in ``reduced``.

    NotComparableError: no layer of the reduced model is of its kind, between layers of these kinds.
    """
    digests_of(full, reduced)
    _check_versions(full, reduced)
    _check_numbers(full)
    known = expected(reduced)
    for number, digest in full.by_region.items():
        same = known.get(digest.key) or _elsewhere(digest.key, known, reduced)
        if not same:
            raise NotComparableError(f"the reduced model has nothing like {_named(full, number)}: {digest.key}")
        if all(each.contents != digest.contents for each in same):
            raise StructureError(_difference(full, reduced, number, same[0]))


def _elsewhere(key: Key, known: Mapping[Key, list[Digest]], reduced: Digests) -> list[Digest]:
    """Regions between layers of the same kinds behind others, where they read nothing from before these layers."""
    same = [digest for other, every in known.items() if len(key) > 3 and other[:-1] == key[:-1] for digest in every]
    return same if all(reduced.like_others(digest) for digest in same) else []


def _difference(full: Digests, reduced: Digests, number: int, like: Digest) -> str:
    """The first node that differs, or what is missing."""
    digest, where = full.by_region[number], _named(full, number)
    there = like.contents
    for place, node_hash in digest.nodes.items():
        if node_hash not in there:
            node = full.file.nodes[place]
            tensors = list(_tensors(full, place, number))
            of_weights = f" of {' and '.join(tensors)}" if tensors else ""
            return (
                f"{where}: {node.op_type} {node.name or node.output[0]}{of_weights} is not what the reduced model "
                "computes there"
            )
    for name, output in digest.outputs.items():
        if output not in there:
            return f"{where}: {name} is not computed as the reduced model's is"
    here = digest.contents
    missing = [reduced.file.nodes[place] for place, node_hash in like.nodes.items() if node_hash not in here]
    what = f"{missing[0].op_type} {missing[0].name or missing[0].output[0]}" if missing else "an output"
    return f"{where} lacks {what} of the reduced model"


def _tensors(full: Digests, place: int, number: int) -> Iterator[str]:
    """What is known of the weights of a node."""
    for name in full.file.nodes[place].input:
        if name not in full.weights:
            continue
        meaning = full.weights[name]
        tensor = full.file.tensors[name]
        layers = sorted(layer for _, layer in meaning.layers)
        if layers:
            own = full.regions.of(number).layer if number else -1
            yield f"{name} (a weight of layer {', '.join(map(str, layers))})" if layers != [own] else name
        elif not meaning.places and tensor.dims:
            yield f"{name} {list(tensor.dims)} (no weight of the checkpoint)"


def _named(full: Digests, number: int) -> str:
    if number == SHARED:
        return "the part before the layers"
    region = full.regions.of(number)
    last = number == 2 * len(full.regions.order) + 1
    if region.after and last:
        return "the part after the last layer"
    return f"{'what follows ' if region.after else ''}layer {region.layer} of {region.stack}"


def _check_versions(full: Digests, reduced: Digests) -> None:
    def versions(digests: Digests) -> tuple[int, list[tuple[str, int]]]:
        model = digests.file.model
        return model.ir_version, sorted((each.domain, each.version) for each in model.opset_import)

    if versions(full) != versions(reduced):
        raise StructureError(f"versions are {versions(full)}, the reduced model's {versions(reduced)}")


def _check_numbers(full: Digests) -> None:
    """Inputs and outputs that belong to layers must be numbered in the order of the layers."""
    regions = full.regions
    levels = {name: 2 * level for name, level in regions.states.items()}
    region_of = {name: number for number, each in full.by_region.items() for name in each.outputs if number}
    levels |= {name: number // 2 * 2 for name, number in region_of.items() if number_of(name) >= 0}
    families: dict[str, list[str]] = {}
    for name in levels:
        families.setdefault(family(name), []).append(name)
    for names in families.values():
        ordered = sorted(names, key=number_of)
        for name, following in pairwise(ordered):
            if levels[name] >= levels[following]:
                raise StructureError(f"{following} belongs to no later layer than {name}")
