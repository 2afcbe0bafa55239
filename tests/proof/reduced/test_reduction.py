"""Reduced models: which layers they have, and what of a definition changes with them."""

from collections import Counter
from itertools import combinations, pairwise, product

import pytest
import torch
from torch import nn

from posexport.proof.grid.grid import grid
from posexport.proof.reduced.calls import few
from posexport.proof.reduced.reduction import WORDS, chosen, kind_of, leave_out_layers, reduction_of
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source


def source(name: str, *settings: str) -> Source:
    return load_source(name, LoadOptions(settings=settings))


@pytest.mark.parametrize(
    ("kinds", "indices"),
    [
        ("AAAAAA", [0, 5]),
        ("ABABAB", [0, 1, 2, 5]),
        ("AAABAAAB", [0, 1, 3, 4, 7]),
        ("AAABAAAB" * 2, [0, 1, 3, 4, 15]),
        ("AAABAAABA", [0, 1, 3, 4, 7, 8]),
        ("AABAABAABABABABA", [0, 1, 2, 3, 5, 15]),
        ("ABCABCABC", [0, 1, 2, 3, 4, 8]),
        ("BAAAA", [0, 1, 4]),
        ("AAAAB", [0, 1, 4]),
    ],
)
def test_adjacent_kinds_are_adjacent_in_the_reduced_model(kinds: str, indices: list[int]) -> None:
    assert chosen(kinds) == indices
    kept = [kinds[index] for index in indices]
    assert {*pairwise(kept)} == {*pairwise(kinds)}


@pytest.mark.parametrize("length", [3, 4, 5, 6, 7])
def test_no_fewer_layers_would_do(length: int) -> None:
    """Every choice of layers of every stack of three kinds, against the conditions themselves."""

    def will_do(kinds: tuple[str, ...], indices: tuple[int, ...]) -> bool:
        kept, counts = [kinds[index] for index in indices], Counter(kinds)
        ends = indices[0] == 0 and indices[-1] == length - 1 and kept[-2] == kinds[-2]
        twice = all(kept.count(kind) >= min(2, count) for kind, count in counts.items())
        return ends and twice and {*pairwise(kept)} == {*pairwise(kinds)}

    for kinds in product("ABC", repeat=length):
        counts = (n for n in range(2, length) if any(will_do(kinds, few) for few in combinations(range(length), n)))
        found = chosen(kinds)
        assert (None if found is None else len(found)) == next(counts, None), kinds
        assert found is None or will_do(kinds, tuple(found)), kinds


@pytest.mark.parametrize("kinds", ["AB", "ABC", "ABCD", "AA"])
def test_a_model_whose_layers_all_differ_is_not_reduced(kinds: str) -> None:
    assert chosen(kinds) is None


def test_layers_of_one_kind_differ_in_weights_alone() -> None:
    first, second = (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)) for _ in range(2))
    assert kind_of(first) == kind_of(second)
    second[1].eps = 1e-3
    assert kind_of(first) != kind_of(second)


def test_a_decoder_keeps_two_layers_their_weights_and_their_caches() -> None:
    full = source("decoder-rope", "layers=6", "vocab=5000")
    reduction = reduction_of(full)
    assert not isinstance(reduction, str)
    assert {path: stack.kept for path, stack in reduction.stacks.items()} == {"decoder.layers": [0, 5]}
    assert (reduction.layers, reduction.kept) == (6, 2)
    reduced = reduction.source
    assert [spec.name for spec in reduced.outputs if spec.name != "logits"] == [
        f"present.{layer}.{half}" for layer in (0, 1) for half in ("key", "value")
    ]
    assert reduced.inputs[0].size == WORDS == reduced.outputs[0].axes[-1]
    parameters, of_reduced = (dict(each.module.named_parameters()) for each in (full, reduced))
    assert (
        of_reduced["decoder.layers.1.attention.query.weight"] is parameters["decoder.layers.5.attention.query.weight"]
    )
    table = of_reduced["decoder.token.weight"]
    assert table.data_ptr() == parameters["decoder.token.weight"].data_ptr()
    ids = torch.arange(7)[None]
    with torch.no_grad():
        logits, *caches = reduced.module(ids, torch.ones_like(ids))
    assert logits.shape == (1, 7, WORDS)
    assert len(caches) == 4
    # the full model is as it was
    assert len(full.module(ids, torch.ones_like(ids))) == 13


def test_both_stacks_of_an_encoder_decoder_are_reduced() -> None:
    reduction = reduction_of(source("encoder-decoder-t5", "layers=4"))
    assert not isinstance(reduction, str)
    assert {path: stack.kept for path, stack in reduction.stacks.items()} == {
        "encoder.groups": [0, 3],
        "decoder.layers": [0, 3],
    }
    assert len(reduction.source.parts) == 2


@pytest.mark.parametrize(("each", "kept"), [(1, "AB"), (2, "AABB")])
def test_trial_calls_have_some_layers_of_each_kind(each: int, kept: str) -> None:
    class Layer(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

    def layers(kinds: str) -> nn.Module:
        module = nn.Module()
        module.layers = nn.ModuleList(map(Layer, kinds))
        return module

    module = layers("AABAAB")
    assert isinstance(leave_out_layers(module, each=each), dict)
    assert "".join(layer.kind for layer in module.layers) == kept  # type: ignore[union-attr,misc]
    assert leave_out_layers(layers("ABC"), each=each) == "it has no stack of equal layers"


def test_layers_that_share_their_weights_are_not_reduced() -> None:
    assert reduction_of(source("encoder-t5", "layers=6", "layer_groups=3")) == "its layers share weights"


def test_calls_of_the_full_model_have_all_paddings_in_one_batch() -> None:
    full = source("decoder-rope", "layers=3")
    points = few(grid(full.limits, full.inputs), weights=1000)
    accepted = [(p.batch, p.length, p.padding, p.calls) for p in points if not p.must_be_rejected]
    assert accepted == [(3, 17, "ragged", ()), (3, 17, "ragged", (14, 1, 1, 1)), (1, 129, "none", ())]


def test_an_encoder_of_a_fixed_size_reads_one_batch_in_all_calls_of_the_full_model() -> None:
    full = source("decoder-rope", "layers=3")
    points = few(grid(full.limits, full.inputs), weights=1000, fixed=True)
    assert {point.batch for point in points} == {3}
    assert [(p.length, p.padding) for p in points if not p.must_be_rejected] == [
        (17, "ragged"),
        (17, "ragged"),
        (129, "none"),
    ]
