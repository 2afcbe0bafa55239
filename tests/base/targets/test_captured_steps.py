"""Decode steps as CUDA graphs: slots from a mask as wide as the cache, buffers that stay, what a card is asked for."""

import dataclasses
import gc

import numpy as np
import on_stand_in
import pytest
from on_stand_in import asked

import posexport
from posexport.base.targets.dtypes import BY_NAME
from posexport.errors import PosexportError
from posexport.run.bundle.read import read
from posexport.run.captured import SLOTS, CapturedSession

dry = pytest.mark.skipif(on_stand_in.libraries.missing() is not None, reason=str(on_stand_in.libraries.missing()))
#: 5 heads of 8 channels over 5 heads of keys
SMALL = {"layers": 2, "hidden": 40, "heads": 5, "feedforward": 24, "vocab": 61}
PASS = "fixed-shape-steps"


def converted(source, bundle, precision="fp32", lowering="filled-slots", **settings):
    posexport.convert(
        source,
        bundle,
        target="cuda",
        precision=precision,
        cache="static",
        lowering=lowering,
        settings=SMALL | settings,
        verify=False,
    )
    return bundle


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return converted("decoder-rope", tmp_path_factory.mktemp("steps") / "rope")


@pytest.mark.parametrize(
    "name",
    [
        "rope",
        pytest.param("nope", marks=pytest.mark.all),
        pytest.param("absolute", marks=pytest.mark.all),
        pytest.param("learned", marks=pytest.mark.all),
    ],
)
def test_a_step_with_a_mask_as_wide_as_the_cache_is_the_step_with_its_own(name, tmp_path):
    """Logits and cache, at every place up to the last one, of rows that are padded on the left, and one that ended."""
    bundle = converted(f"decoder-{name}", tmp_path / "b")
    assert read(bundle, None).passes[PASS].nodes == 1
    session = posexport.load(bundle)
    rng, rows, slots = np.random.default_rng(0), 3, 19
    sizes = {"batch_size": rows, "max_sequence_length": slots}
    past = {
        spec.name: np.zeros([sizes.get(axis, axis) for axis in spec.axes], BY_NAME[spec.dtype].numpy)
        for spec in session.inputs
        if spec.role == "cache"
    }
    keep = np.ones((rows, 7), np.int64)
    keep[0, :3] = keep[1, :1] = 0
    whole = session.run({"input_ids": rng.integers(5, 61, keep.shape), "attention_mask": keep, **past})
    own, wide = (dict(zip(past, list(whole.values())[1:], strict=True)) for _ in range(2))
    for place in range(7, slots):
        keep = np.concatenate((keep, [[1], [int(place < 12)], [1]]), 1)
        ids = rng.integers(5, 61, (rows, 1))
        padded = np.pad(keep, ((0, 0), (0, slots - keep.shape[1])))
        first = session.run({"input_ids": ids, "attention_mask": keep, **own})
        second = session.run({"input_ids": ids, "attention_mask": padded, **wide})
        own, wide = (dict(zip(past, list(answer.values())[1:], strict=True)) for answer in (first, second))
        assert np.abs(first["logits"]).max() > 0.1
        for output, array in first.items():
            np.testing.assert_array_equal(second[output], array, err_msg=f"{output} at {place}")


def capturing(bundle):
    """A session whose steps are in their own buffers, on the CPU, which captures nothing."""
    session = posexport.load(bundle)
    (link,) = session._chain.links
    captured = CapturedSession(link.session, "cpu")
    session._chain.links = [dataclasses.replace(link, session=captured)]
    return session, captured


@pytest.mark.all
def test_captured_generations_are_those_of_other_sessions(rope):
    """One after the other in the same buffers, at the same time in others, with rows that end at different steps."""
    plain = posexport.load(rope)
    session, captured = capturing(rope)
    prompts = [[[5, 9, 7]], [[5, 9, 7], [8], [1, 2, 3, 4, 5, 6, 7]], [[11, 12]]]
    drawn = {"max_new_tokens": 12, "do_sample": True, "temperature": 30.0}  # greedy search repeats a token
    wanted = [[c.tokens for c in plain.generate(each, **drawn).completions] for each in prompts]
    assert min(len(set(tokens)) for each in wanted for tokens in each) > 5
    for _ in range(2):
        for each, tokens in zip(prompts, wanted, strict=True):
            assert [c.tokens for c in session.generate(each, **drawn).completions] == tokens
            gc.collect()
    # of one row and of three, for all generations
    assert captured._graphs == 2
    stops = {wanted[1][0][4], wanted[1][2][8]}
    for each in prompts:
        answers = [s.generate(each, eos_token_id=list(stops), **drawn) for s in (plain, session)]
        assert [c.tokens for c in answers[0].completions] == [c.tokens for c in answers[1].completions]
    beams = [s.generate(prompts[1], max_new_tokens=6, num_beams=3) for s in (plain, session)]
    assert [c.tokens for c in beams[0].completions] == [c.tokens for c in beams[1].completions]


def test_two_caches_at_a_time_have_their_own_buffers(rope):
    from posexport.run.cache import Cache, decoder_interface

    session, captured = capturing(rope)
    decoder = decoder_interface(session.inputs, session.outputs)
    one, other = (Cache(session._chain, decoder, rows=1, room=SLOTS) for _ in range(2))
    ids, keep = np.array([[7, 8, 9]]), np.ones((1, 3), np.int64)
    one.read(ids, keep)
    before = one.read(ids[:, :1], keep[:, :1])
    other.read(ids + 5, keep)
    other.read(ids[:, 1:2], keep[:, :1])
    again = Cache(session._chain, decoder, rows=1, room=SLOTS)
    again.read(ids, keep)
    np.testing.assert_array_equal(again.read(ids[:, :1], keep[:, :1]), before)
    assert one.read(ids[:, 2:], keep[:, :1]).tolist() == again.read(ids[:, 2:], keep[:, :1]).tolist()
    assert captured._graphs == 3


@pytest.mark.parametrize(
    ("encoding", "lowering", "advice"),
    [
        pytest.param("rope", "auto", "or convert it with --target cuda --cache static", marks=pytest.mark.all),
        pytest.param("rope", "static", "or convert it with --target cuda --cache static", marks=pytest.mark.all),
        ("t5", "filled-slots", r"leave graph out \(DistanceScores reads slots on the host\)"),
    ],
)
def test_a_bundle_with_steps_of_many_shapes_is_not_captured(encoding, lowering, advice, tmp_path):
    bundle = converted(f"decoder-{encoding}", tmp_path / "b", "fp16", lowering, hidden=320)
    with pytest.raises(PosexportError, match=advice):
        posexport.load(bundle, provider="cuda", provider_options={"graph": True})


@dry
@pytest.mark.all
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_steps_are_captured_once_and_replayed(precision, tmp_path):
    bundle = converted("decoder-rope", tmp_path / "b", precision, hidden=128, heads=2)
    prompt, first, *steps, next_prompt, again, last, end = asked("generated", bundle, "on")
    assert len(steps) == 2
    assert (prompt["captures"], prompt["graphs"], next_prompt["captures"]) == (0, 0, 0)
    assert (first["captures"], first["graphs"]) == (1, 1)
    for replayed in (*steps, again, last, end):
        assert (replayed["captures"], replayed["graphs"]) == (0, 1)
        # the logits' last token, and their copy
        assert replayed["kernels"] < 5 < first["kernels"]
        assert replayed["to_host"] == 61 * 4
