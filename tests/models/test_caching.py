"""How a decoder keeps past tokens: dynamic or in places of fixed size, keys rotated at write or at read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder
from posexport.nn.caching import Caching, Reach, StaticCache
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.subjects.runner import RunError, Runner, in_calls, whole
from posexport.run.load import load
from posexport.sources.builtin import builtin_source as builtin
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from posexport.base.spec import CAPACITY
from tests.small import in_short
from tests.tolerances import agree

SMALL = ("vocab=61", "hidden=20", "heads=5", "feedforward=24", "max_positions=40")
#: below and beyond the length up to which `rope-dynamic` is plain
LENGTHS = (1, 7, 43)


def source(name: str, *settings: str) -> Source:
    return builtin(name, task=None, settings_given=(*SMALL, *settings))


def made(tmp_path: Path, name: str, *settings: str, **options: Any) -> Path:
    assert convert(name, tmp_path / "x", ConvertOptions(settings=(*SMALL, *settings), **options)).good
    return tmp_path / "x"


WAYS = [
    (name, settings, cache, rotation)
    for name, settings in (
        ("decoder-rope-dynamic", ("kv_heads=1",)),
        ("decoder-rope-longrope", ()),
        ("decoder-xpos", ()),
    )
    for cache in ("dynamic", "static")
    for rotation in ("at-write", "at-read")
]


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "cache", "rotation"),
    # the short run has what is not the default of both
    in_short(WAYS, lambda name, _, *way: (name, *way) == ("decoder-rope-dynamic", "static", "at-read")),
)
def test_each_way_is_proven_against_its_own_definition(
    name: str, settings: tuple[str, ...], cache: Any, rotation: Any, tmp_path: Path
) -> None:
    made(tmp_path, name, *settings, cache=cache, rotation=rotation, lengths=LENGTHS, threads=1)


@pytest.mark.all
@pytest.mark.parametrize(
    "name",
    in_short(
        ["decoder-alibi", "decoder-fire", "decoder-shaw-kv", "decoder-relative-key-query"],
        lambda name: name == "decoder-shaw-kv",
    ),
)
def test_a_static_cache_is_proven_for_terms_of_attention(name: str, tmp_path: Path) -> None:
    target = made(tmp_path, name, cache="static", lengths=(1, 7, 17), threads=1)
    session = load(target)
    caches = [spec for spec in session.inputs if spec.role == "cache"]
    assert len(caches) == 4
    assert all(spec.axes == ["batch_size", 5, CAPACITY, 4] for spec in caches)
    assert session.manifest.opset == 24


def run(of: Source, calls: tuple[int, ...], length: int = 43) -> list[np.ndarray[Any, Any]]:
    point = GridPoint(batch=2, length=length)
    truth = PrecisionCopy(of.module, torch.float64, outputs=len(of.outputs))
    return in_calls(truth, draw(point, of.inputs), of, calls)


def test_rotated_at_read_one_layer_of_steps_is_one_pass_and_two_are_not() -> None:
    one, two = (with_kv_cache(source("decoder-rope-dynamic", f"layers={n}"), "dynamic", "at-read") for n in (1, 2))
    steps = (37, 1, 1, 1, 1, 1, 1)
    (in_steps, whole), (other, by_two) = [(run(of, steps)[0][:, -1], run(of, (43,))[0][:, -1]) for of in (one, two)]
    agree(in_steps, whole, "model", np.float64)
    assert np.abs(other - by_two).max() > 1e-3


def test_rotated_at_write_not_even_one_layer_is() -> None:
    one = source("decoder-rope-dynamic", "layers=1")
    assert np.abs(run(one, (37, 1, 1, 1, 1, 1, 1))[0][:, -1] - run(one, (43,))[0][:, -1]).max() > 1e-3


def test_both_caches_and_both_rotations_agree_where_frequencies_are_fixed() -> None:
    ways = [(c, r) for c in ("dynamic", "static") for r in ("at-write", "at-read")]
    found = [run(with_kv_cache(source("decoder-rope"), *way), (5, 4, 1), 10) for way in ways]  # type: ignore[arg-type]
    logits, *caches = zip(*found, strict=True)
    for other in logits[1:]:
        agree(other, logits[0], "model", np.float64)
    keys = caches[0]
    agree(keys[0], keys[2], "model", np.float64)
    agree(keys[1], keys[3], "model", np.float64)
    assert np.abs(keys[0] - keys[1]).max() > 1e-3


def test_what_free_places_hold_is_not_read() -> None:
    of = with_kv_cache(source("decoder-rope"), "static", "at-write")
    assert isinstance(of.module.decoder, Decoder)
    assert isinstance(of.module.decoder.caching, Caching)
    assert isinstance(of.module.decoder.caching.cache, StaticCache)
    feeds = draw(GridPoint(batch=2, length=9), of.inputs)
    other = {name: array + 50 if "past" in name else array for name, array in feeds.items()}
    truth = whole(PrecisionCopy(of.module, torch.float64, outputs=len(of.outputs)), of)
    for y, changed in zip(truth(feeds), truth(other), strict=True):
        assert np.array_equal(y, changed)


@pytest.mark.parametrize(
    ("name", "cache", "rotation", "says"),
    [
        (
            "encoder-rope",
            "static",
            "at-write",
            "--cache static needs a decoder with a cache; encoder-rope is for features",
        ),
        ("decoder-alibi", "dynamic", "at-read", "at-read has nothing to do: no layer of decoder-alibi rotates keys"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, cache: Any, rotation: Any, says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        with_kv_cache(source(name), cache, rotation)


def test_a_static_cache_needs_an_opset_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=r"--cache static needs --opset 24 or higher, .* got 18"):
        convert("decoder-rope", tmp_path / "x", ConvertOptions(cache="static", opset=18))


# -- masks and positions in the graph ----------------------------------------------------------------


def runner(target: Path) -> Runner:
    session = load(target)
    names = [[spec.name for spec in specs] for specs in (session.inputs, session.outputs)]
    return Runner(target / "model.onnx", inputs=names[0], outputs=names[1], threads=1)


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("dynamic"), "decoder-absolute", verify=False)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("static"), "decoder-absolute", verify=False, cache="static")


def feeds(new: int, past: int, mask: int) -> dict[str, np.ndarray[Any, Any]]:
    caches = {
        f"past_key_values.{i}.{what}": np.zeros((2, 5, past, 4), np.float32)
        for i in (0, 1)
        for what in ("key", "value")
    }
    ids = np.ones((2, new), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones((2, mask), np.int64), "position_ids": ids * 0 - 1, **caches}


@pytest.mark.all
@pytest.mark.parametrize("mask", [6, 8])
def test_the_graph_refuses_a_mask_that_is_not_over_past_and_new(mask: int, dynamic: Path) -> None:
    run = runner(dynamic)
    run(feeds(3, 4, 7))
    with pytest.raises(RunError, match="attention_mask is not over past and new tokens"):
        run(feeds(3, 4, mask))


@pytest.mark.all
@pytest.mark.parametrize("mask", [2, 13])
def test_the_graph_refuses_more_tokens_than_places(mask: int, static: Path) -> None:
    run = runner(static)
    run(feeds(3, 12, 12))
    with pytest.raises(RunError, match="attention_mask is longer than the cache has places, or shorter than input_ids"):
        run(feeds(3, 12, mask))


def test_the_limit_counts_the_tokens_in_a_static_cache(static: Path) -> None:
    run = runner(static)
    run(feeds(1, 50, 40))
    with pytest.raises(RunError, match="input longer than 40 positions"):
        run(feeds(1, 50, 41))


@pytest.mark.all(but=("static",))
@pytest.mark.parametrize("bundle", ["dynamic", "static"])
def test_the_graph_refuses_positions_beyond_the_table(bundle: str, request: pytest.FixtureRequest) -> None:
    target = request.getfixturevalue(bundle)
    given = feeds(3, 4, 7) if bundle == "dynamic" else feeds(3, 12, 7)
    run = runner(target)
    positions = np.array([[37, 38, 39], [0, 1, 2]])
    run({**given, "position_ids": positions})
    with pytest.raises(RunError, match="position_ids beyond 39"):
        run({**given, "position_ids": positions + 1})
    with pytest.raises(
        PosexportError, match=r"position_ids holds 40 at \[0, 2\]; it takes positions from 0 to 39, or -1"
    ):
        load(target).run({"input_ids": given["input_ids"], "position_ids": positions + 1})


def test_positions_may_be_left_out_of_a_plain_session(dynamic: Path) -> None:
    session = load(dynamic)._chain.links[0].session
    assert "position_ids" not in [value.name for value in session.get_inputs()]
    given = feeds(3, 4, 7)
    without = session.run(["logits"], {name: array for name, array in given.items() if name != "position_ids"})[0]
    counted = session.run(["logits"], {**given, "position_ids": np.array([[4, 5, 6]] * 2)})[0]
    other = session.run(["logits"], {**given, "position_ids": np.array([[5, 6, 7]] * 2)})[0]
    assert np.array_equal(without, counted)
    assert np.abs(other - counted).max() > 1e-2


def test_a_bundle_with_a_static_cache_takes_no_cache_or_one_with_room(static: Path) -> None:
    session = load(static)
    ids = [[3, 4, 5, 6]]
    alone = session.run({"input_ids": ids})
    assert alone["present.0.key"].shape == (1, 5, 4, 4)
    past = {name.replace("present", "past_key_values"): array for name, array in alone.items() if "present" in name}
    with pytest.raises(PosexportError, match=r"are 1 new tokens and past_key_values\.0\.key has 4 slots; give a mask"):
        session.run({"input_ids": [[7]], "attention_mask": [[1] * 5], **past})


@pytest.mark.all
def test_a_deep_graph_reads_no_length_from_positions_that_are_left_out(tmp_path: Path) -> None:
    session = load(made(tmp_path, "decoder-rope", "layers=12", verify=False))
    found = session._chain.links[0].session.run(["logits"], deep(5))[0]
    assert found.shape == (2, 5, 61)


def deep(new: int) -> dict[str, np.ndarray[Any, Any]]:
    names = (f"past_key_values.{i}.{what}" for i in range(12) for what in ("key", "value"))
    ids = np.ones((2, new), np.int64)
    return {"input_ids": ids, "attention_mask": ids, **{name: np.zeros((2, 5, 0, 4), np.float32) for name in names}}


def test_keys_move_along_with_the_position_ids_of_their_queries() -> None:
    """Padding on the left, padding among the queries, and no query that the mask keeps."""
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
    reach = Reach.by_mask(mask, 2, Caching(), torch.tensor([[7, 8], [5, 99], [4, 4]]))
    assert reach.queries.ids_BT.tolist() == [[7, 8], [5, 99], [4, 4]]
    assert reach.keys.ids_BT.tolist() == [[6, 6, 7, 8], [3, 4, 5, 5], [0, 1, 1, 1]]
    negative = Reach.by_mask(mask, 2, Caching(), torch.full((3, 2), -1))
    assert negative.queries.ids_BT.tolist() == [[1, 2], [2, 2], [1, 1]]
