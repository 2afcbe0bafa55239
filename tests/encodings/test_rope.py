"""Rotations: what no generic test of encodings asks. Relative scores, norms, thresholds, storage, released numbers."""

import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from posexport.encodings.build import build
from posexport.encodings.encoding import ENCODINGS
from posexport.encodings.positions import Positions
from posexport.encodings.rope.config import from_config
from posexport.encodings.rope.dynamic import Dynamic
from posexport.encodings.rope.linear import Linear
from posexport.encodings.rope.llama3 import Llama3
from posexport.encodings.rope.longrope import LongRope
from posexport.encodings.rope.ntk import Ntk
from posexport.encodings.rope.plain import Plain
from posexport.encodings.rope.proportional import Proportional
from posexport.encodings.rope.rope import Rope, rotation
from posexport.encodings.rope.schedule import Schedule, length_of
from posexport.encodings.rope.yarn import Yarn
from posexport.errors import PosexportError
from tests.tolerances import agree, agree_each

ROTATIONS = [name for name, entry in ENCODINGS.items() if issubclass(entry.cls, Rope)]
FIXED = [name for name in ROTATIONS if ENCODINGS[name].cls.shift_invariant]
GOLDEN = json.loads((Path(__file__).parents[1] / "golden_rope.json").read_text())
#: Llama 3's ramp is a difference of nearly equal numbers at its lower end
LOST = {"rope-llama3": 3}
HEADS, D = 3, 12


def at(*rows: list[int] | range) -> Positions:
    """These positions, a list a row."""
    ids_BT = torch.tensor([list(row) for row in rows])
    return Positions(ids_BT=ids_BT, slots_T=torch.arange(ids_BT.shape[1]))


def made(name: str, **settings: str) -> Rope:
    encoding, _ = build(name, {"head_size": D, "max_positions": 64}, settings)
    assert isinstance(encoding, Rope)
    return encoding


def heads(length: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(length)
    return torch.randn(batch, HEADS, length, D, dtype=torch.float64).to(dtype)


def test_every_named_rotation_is_here():
    schedules = ("linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional")
    assert {"rope", *(f"rope-{kind}" for kind in schedules), "xpos"} <= set(ROTATIONS)


# what a rotation is


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("name", FIXED)
def test_scores_depend_on_the_distance_alone(name, layout):
    rotary = made(name, layout=layout)
    q, k = heads(1).expand(-1, -1, 9, -1), heads(2)[:, :, :1].expand(-1, -1, 9, -1)
    here = at(range(9))
    s = rotary.rotate(q, here, "query") @ rotary.rotate(k, here, "key").mT
    for distance in range(-8, 9):
        diagonal = torch.diagonal(s, -distance, 2, 3)
        agree(diagonal, diagonal[..., :1].expand_as(diagonal), "encoding", np.float64, 9 * D)
    assert (s[0, 0, 0] - s[0, 0, 0, :1]).abs().max() > 0.1


@pytest.mark.parametrize("name", [name for name in ROTATIONS if name != "xpos"])
def test_norms_grow_by_the_attention_factor_and_nothing_else(name):
    rotary = made(name)
    x = heads(70)
    turned = rotary.rotate(x, at(range(70)), "query")
    agree(turned.norm(dim=-1), x.norm(dim=-1) * rotary.schedule.attention_factor, "encoding", np.float64)
    agree(turned[:, :, 0], x[:, :, 0] * rotary.schedule.attention_factor, "encoding", np.float64)
    assert (turned[:, :, 1] - x[:, :, 1] * rotary.schedule.attention_factor).abs().max() > 0.1


@pytest.mark.parametrize("name", [name for name in ROTATIONS if name != "xpos"])
def test_queries_and_keys_are_turned_alike(name):
    rotary = made(name)
    here = at(range(70))
    agree(rotary.rotate(heads(70), here, "key"), rotary.rotate(heads(70), here, "query"), "same values", np.float64)


@pytest.mark.parametrize("name", ROTATIONS)
def test_storages_hold_the_same_pairs(name):
    half, interleaved = made(name, layout="half"), made(name, layout="interleaved")
    order = [i + half * D // 2 for i in range(D // 2) for half in (0, 1)]  # channel of the half storage at each place
    x = heads(70)
    for role in ("query", "key"):
        want = half.rotate(x, at(range(70)), role)[..., order]
        agree(interleaved.rotate(x[..., order], at(range(70)), role), want, "encoding", np.float64)


PARTIAL = [name for name in ROTATIONS if "rotary_dim" in ENCODINGS[name].cls.arguments()]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("name", PARTIAL)
def test_partial_rotation_is_a_rotation_of_a_narrower_head(name, layout):
    part, x = made(name, rotary_dim="8", layout=layout), heads(70)
    narrow, _ = build(name, {"head_size": 8, "max_positions": 64}, {"layout": layout})
    here = at(range(70))
    turned = part.rotate(x, here, "query")
    agree(turned[..., 8:], x[..., 8:], "same values", np.float64)
    agree(turned[..., :8], narrow.rotate(x[..., :8], here, "query"), "same values", np.float64)
    assert len(PARTIAL) == 7


def test_proportional_pairs_span_the_head():
    turned = made("rope-proportional", fraction="0.34").rotate(heads(2), at([0, 1]), "query")
    changed = (turned != heads(2))[0, 0, 1]
    assert changed.nonzero().flatten().tolist() == [0, 1, 6, 7]
    assert made("rope-proportional", fraction="0.34").schedule.inv_freq == [1.0, 10000 ** (-2 / 12), 0, 0, 0, 0]


# precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ROTATIONS)
def test_half_precision_does_not_reach_the_angles(name, dtype):
    rotary = made(name).to(dtype)
    x, here = heads(5, dtype=dtype), at([0, 255, 257, 2049, 4095])
    got, want = rotary.rotate(x, here, "query"), rotary.rotate(x.double(), here, "query")
    assert got.dtype == dtype
    assert want.dtype == torch.float64
    # one rounding of the result, and float32's angles
    bound = torch.finfo(dtype).eps * want.abs() + 4095 * 2**-23 * want.abs().amax(-1, keepdim=True)
    assert ((got.double() - want).abs() <= bound).all()


@pytest.mark.parametrize("name", ROTATIONS)
def test_frequencies_are_float64_whatever_the_module_is_cast_to(name):
    rotary = made(name).half()
    assert not list(rotary.buffers())
    assert not list(rotary.parameters())
    positions = at([0])
    wide = rotary.schedule.frequencies(positions.ids_BT, torch.float64)[0]
    agree_each(wide, rotary.schedule.inv_freq, "rounded", np.float64)


# length


def test_a_row_is_as_long_as_its_largest_position_says():
    assert length_of(at(range(3), [7, 2, 5]).ids_BT).tolist() == [[3], [8]]


@pytest.mark.parametrize("name", [name for name in ROTATIONS if name not in FIXED])
def test_each_row_is_judged_alone_on_both_sides_of_the_original_length(name):
    rotary = made(name)
    assert rotary.boundaries == [64]
    assert not rotary.shift_invariant
    assert not rotary.padding_invariant
    x = heads(66)
    alone = {n: rotary.rotate(x[:, :, :n], at(range(n)), "query") for n in (63, 64, 65, 66)}
    # up to the original length nothing depends on the length, beyond it everything does
    agree(alone[63], alone[64][:, :, :63], "same values", np.float64)
    for shorter in (63, 64):
        assert (alone[65][:, :, :shorter] - alone[shorter]).abs().max() > 0.01
    short, long = at(range(64), range(1, 65)).ids_BT
    both = rotary.rotate(x[:, :, :64].expand(2, -1, -1, -1), at(short.tolist(), long.tolist()), "query")
    agree(both[:1], alone[64], "same values", np.float64)
    want = rotary.rotate(x[:, :, :64], at(long.tolist()), "query")
    agree(both[1:], want, "same values", np.float64)
    # the same answer after longer calls: nothing is remembered
    agree(rotary.rotate(x[:, :, :63], at(range(63)), "query"), alone[63], "same values", np.float64)


def test_dynamic_is_exactly_plain_up_to_the_original_length():
    dynamic, plain, x = made("rope-dynamic", factor="3.7"), made("rope"), heads(64, dtype=torch.float32)
    want = plain.rotate(x, at(range(64)), "query")
    agree(dynamic.rotate(x, at(range(64)), "query"), want, "same values", np.float32)


def test_longrope_switches_between_its_lists():
    schedule = made("rope-longrope", short_factor="1,1,2,2,4,4", long_factor="3").schedule
    plain = np.array(Plain(dim=D).inv_freq)
    short, long = schedule.frequencies(at(range(64), range(1, 65)).ids_BT, torch.float64).numpy()
    agree_each(short, plain / [1, 1, 2, 2, 4, 4], "rounded", np.float64)
    agree_each(long, plain / 3, "rounded", np.float64)


# xpos


def test_xpos_is_rope_times_a_power_of_the_distance():
    xpos, rope = made("xpos", scale_base="20", max_positions="100"), made("rope", layout="interleaved")
    here, far = at([40, 7, 41]), at([2, 90])
    q, k = heads(3), heads(2)
    got = xpos.rotate(q, here, "query") @ xpos.rotate(k, far, "key").mT
    zeta = (np.arange(D // 2) * 2 / D + 0.4) / 1.4
    distance = (here.ids_BT[0][:, None] - far.ids_BT[0]).numpy()
    power = torch.from_numpy(np.repeat(zeta ** (distance[..., None] / 20), 2, -1))
    turned_q, turned_k = rope.rotate(q, here, "query"), rope.rotate(k, far, "key")
    want = torch.einsum("bhtd,bhsd,tsd->bhts", turned_q, turned_k, power)
    agree(got, want, "encoding", np.float64, 90)


def test_xpos_scales_stay_in_half_precision_to_the_end():
    with pytest.raises(PosexportError, match=r"max_positions must be at most (\d+), got 100000: .*scale_base than 512"):
        made("xpos", max_positions="100000")
    last = 6798
    xpos = made("xpos", max_positions=str(last))
    assert xpos.limit == last
    with pytest.raises(PosexportError, match=f"at most {last}"):
        made("xpos", max_positions=str(last + 1))
    ends = at([0, last - 1])
    for role in ("query", "key"):
        turned = xpos.rotate(torch.ones(1, 1, 2, D, dtype=torch.float16), ends, role)
        sizes = turned.double().unflatten(-1, (-1, 2)).norm(dim=-1)
        assert sizes.max() < 2**13
        assert sizes.min() > 2**-13


def test_xpos_does_not_look_at_the_call():
    xpos, x = made("xpos"), heads(50)
    whole = xpos.rotate(x, at(range(50)), "key")
    agree(xpos.rotate(x[:, :, :9], at(range(9)), "key"), whole[:, :, :9], "same values", np.float64)
    agree(xpos.rotate(x[:, :, 49:], at([49]), "key"), whole[:, :, 49:], "same values", np.float64)


# released numbers


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str(case["config"].get("rope_scaling", "plain"))[:60])
def test_frequencies_are_those_of_transformers(case):
    schedule = from_config(case["config"], head_size=case["head_size"])
    for length, want in case["lengths"].items():
        ids_BT = torch.tensor([[max(0, int(length) - 1), 0]])
        got = schedule.frequencies(ids_BT, torch.float64)[0].numpy()
        agree_each(got, want["inv_freq"], "frequencies", np.float32, LOST.get(schedule.name, 1))
        agree(schedule.attention_factor, want["attention_factor"], "frequencies", np.float32)
    kinds = {case["config"].get("rope_scaling", {}).get("rope_type") for case in GOLDEN}
    assert {"dynamic", "yarn", "llama3", "longrope"} <= kinds


def test_proportional_is_gemmas():
    # the numbers that Gemma 4's global layers state: 512 channels, a quarter of the pairs, base 1e6
    table = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    nested = {"full_attention": table, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    schedule = from_config({"rope_parameters": nested}, head_size=512, layer_type="full_attention")
    want = [math.exp(-i / 256 * math.log(1e6)) if i < 64 else 0.0 for i in range(256)]
    agree_each(schedule.inv_freq, want, "attention", np.float64)
    local = from_config({"rope_parameters": nested}, head_size=256, layer_type="sliding_attention")
    assert local == Plain(dim=256, base=1e4)


# configurations

LISTS = {"short_factor": [1.0] * 6, "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({}, Plain(dim=12)),
        ({"rope_scaling": None, "rope_theta": 500.0}, Plain(dim=12, base=500.0)),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": 7.0},
            Plain(dim=12, base=500.0),
        ),
        ({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}, Plain(dim=6, base=500.0)),
        ({"partial_rotary_factor": 0.4}, Plain(dim=4)),
        ({"rope_scaling": {"rope_type": None}}, Plain(dim=12)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Linear(dim=12, factor=2)),
        (
            {
                "rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8},
                "max_position_embeddings": 32,
            },
            Dynamic(dim=12, factor=2.0, max_positions=32),
        ),
        (
            {
                "rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 8, "factor": None},
                "max_position_embeddings": 32,
            },
            Yarn(dim=12, factor=4.0, max_positions=8),
        ),
        (
            {
                "rope_scaling": {"type": "su", **LISTS},
                "max_position_embeddings": 32,
                "original_max_position_embeddings": 16,
            },
            LongRope(
                dim=12,
                short_factor=(1.0,) * 6,
                long_factor=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
                factor=2.0,
                max_positions=16,
            ),
        ),
        (
            {
                "rope_parameters": {"rope_type": "longrope", **LISTS, "attention_factor": 1.5},
                "max_position_embeddings": 32,
            },
            LongRope(
                dim=12,
                short_factor=(1.0,) * 6,
                long_factor=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
                factor=1.0,
                max_positions=32,
                attention=1.5,
            ),
        ),
    ],
)
def test_both_spellings_of_configurations(config, want):
    before = json.dumps(config)
    assert from_config(config, head_size=12) == want
    assert json.dumps(config) == before


def test_a_familys_own_base():
    assert from_config({}, head_size=12, default_base=160000.0).base == 160000.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"type": "mrope"}}, "unknown rope_type 'mrope'; known: default, dynamic, .*yarn"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"unknown rope_type \['yarn'\]"),
        ({"rope_scaling": "linear"}, "rope_scaling in config.json must be a table, got 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_type 'linear' needs factor: add it to rope_parameters or"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor in config.json must be a number, got '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor must be a finite number from 1 on, got 0.5"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' needs max_position_embeddings"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}, "max_position_embeddings": 9},
            "'dynamic' is given with alpha, which it does not take",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "needs original_max_position_embeddings or max_p"),
        ({"rope_scaling": {"type": "yarn"}, "max_position_embeddings": 99}, "'yarn' needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' needs low_freq_factor"),
        ({"rope_scaling": {"rope_type": "longrope"}, "max_position_embeddings": 9}, "'longrope' needs factor"),
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 2, "short_factor": 1}, "max_position_embeddings": 9},
            "short_factor in config.json must be a list of numbers, got 1",
        ),
        (
            {
                "rope_scaling": {"type": "longrope", "factor": 2, **LISTS, "long_factor": [1]},
                "max_position_embeddings": 9,
            },
            "long_factor has 1 numbers, 6 are needed: one for every pair of the 12 rotated channels",
        ),
        ({"rope_parameters": {"a": {}, "b": {}}}, "has a table for each of a, b, none for layers of type None"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}, "max_position_embeddings": 0}, "must be a whole number"),
        ({"partial_rotary_factor": 0.1}, "rotated channels must be an even number from 2 on, got 1"),
        ({"rope_theta": 1.0}, "base must be a finite number above 1, got 1.0"),
    ],
)
def test_configurations_that_are_refused(config, message):
    with pytest.raises(PosexportError, match=message):
        from_config(config, head_size=12)


SCHEDULES: list[Schedule] = [
    Plain(dim=8, base=500.0),
    Linear(dim=12, factor=3.0),
    Ntk(dim=12, factor=3.0),
    Dynamic(dim=10, factor=3.0, max_positions=77),
    Yarn(dim=12, factor=3.0, max_positions=77, beta_fast=20.0, beta_slow=2.0, truncate=False, attention=1.25),
    Llama3(dim=12, factor=3.0, low_freq_factor=2.0, high_freq_factor=3.0, max_positions=77),
    LongRope(dim=4, short_factor=(1.1, 1 / 3), long_factor=(2.0, 3.3), factor=3.0, max_positions=77, attention=1.25),
    Proportional(dim=12, fraction=0.4, factor=3.0),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_a_schedule_finds_its_encoding(schedule):
    encoding = rotation(schedule, head_size=12, layout="interleaved")
    assert encoding.name == schedule.name
    assert encoding.schedule == schedule
    assert encoding.parameters_given["layout"] == "interleaved"
    again = type(encoding)(**json.loads(json.dumps(encoding.parameters_given)))
    assert again.schedule == schedule
    # every field is put to use here: none is left at its default
    for field in fields(schedule):
        if field.name not in ("dim", "base"):
            assert getattr(schedule, field.name) != field.default, field.name


def test_a_schedule_without_encoding_is_a_defect():
    class Strange(Plain):
        pass

    with pytest.raises(LookupError, match="Strange"):
        rotation(Strange(dim=4), head_size=4)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("rope", {"rotary_dim": "7"}, "rope: the rotated channels must be an even number from 2 on, got 7"),
        ("rope", {"rotary_dim": "14"}, "rope: 14 rotated channels do not fit into head_size=12"),
        ("rope", {"layout": "whole"}, "layout must be one of half, interleaved, got 'whole'"),
        ("rope", {"base": "inf"}, "base must be a finite number above 1, got inf"),
        ("rope-linear", {"factor": "0.9"}, "rope-linear: factor must be a finite number from 1 on, got 0.9"),
        ("rope-ntk", {"rotary_dim": "2"}, "at least 4 rotated channels are needed, got 2"),
        ("rope-dynamic", {"rotary_dim": "2"}, "at least 4 rotated channels are needed, got 2"),
        ("rope-dynamic", {"max_positions": "0"}, "max_positions must be a whole number from 1 on, got 0"),
        ("rope-yarn", {"max_positions": "6"}, "max_positions must be a whole number from 7 on, got 6"),
        (
            "rope-yarn",
            {"beta_slow": "33", "max_positions": "999"},
            "rope-yarn: beta_fast must be at least beta_slow=33.0, got 32.0",
        ),
        ("rope-yarn", {"attention": "0"}, r"attention must be a finite number above 0 \(or none\), got 0.0"),
        ("rope-llama3", {"high_freq_factor": "1"}, "high_freq_factor must be above low_freq_factor=1.0, got 1.0"),
        ("rope-longrope", {"short_factor": "1,2"}, "short_factor has 2 numbers, 6 are needed"),
        ("rope-longrope", {"long_factor": "a"}, "long_factor must be one number, or 6 joined by commas, got 'a'"),
        ("rope-longrope", {"long_factor": "0"}, "long_factor must be a finite number above 0, got 0.0"),
        ("rope-longrope", {"max_positions": "1"}, "max_positions must be a whole number from 2 on, got 1"),
        ("rope-proportional", {"fraction": "0.1"}, "fraction must be at most 1 and at least 0.167.*got 0.1"),
        ("rope-proportional", {"fraction": "1.1"}, "fraction must be at most 1 .*got 1.1"),
        ("xpos", {"scale_base": "0"}, "scale_base must be a finite number above 0, got 0.0"),
        ("xpos", {"gamma": "nan"}, "gamma must be a finite number above 0, got nan"),
    ],
)
def test_bad_settings_get_one_sentence(name, settings, message):
    with pytest.raises(PosexportError, match=message):
        made(name, **settings)


def test_storage_is_checked_in_python_too():
    with pytest.raises(PosexportError, match="rope: layout must be half or interleaved, got 'whole'"):
        ENCODINGS["rope"].cls(head_size=4, layout="whole")
    with pytest.raises(PosexportError, match="got 3"):
        ENCODINGS["rope"].cls(head_size=3)


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_rotation_where_the_length_is_the_rotated_width(name: str) -> None:
    """Eight tokens, eight rotated channels: the two eights must not be taken for one another."""
    encoding, x = made(name, rotary_dim="8"), heads(8)
    turned = encoding.rotate(x, at(range(8)), "query")
    assert turned.shape == x.shape
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert (turned[:, :, 1:, :8] - x[:, :, 1:, :8]).abs().max() > 1e-3
