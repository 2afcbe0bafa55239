"""Every registered encoding: its hooks against their float64 oracles, what it sees, what it does past its length."""

import math
import zlib

import numpy as np
import pytest
import torch
from torch import nn

from posexport.encodings.beyond import extend
from posexport.encodings.build import build
from posexport.encodings.encoding import ENCODINGS, HOOKS, Encoding, Entry, register
from posexport.encodings.positions import Grid, Positions
from posexport.errors import PosexportError
from posexport.nn.attention import attend
from tests.tolerances import agree

EVERY = [pytest.param(entry, id=entry.name) for entry in ENCODINGS.values()]
EVERY_CASE = [pytest.param(e, c, id=f"{e.name}-{i}") for e in ENCODINGS.values() for i, c in enumerate(e.cases)]
SIZES = {"hidden": 20, "heads": 5, "head_size": 4, "max_positions": 40}
BATCH, HEADS = 2, 5
#: encodings with sines of positions or distances, and of sums that grow with the length
OF_ANGLES = {"cope", "sinusoidal", "circular", "complex", "attention-table", "cape", "transformer-xl", "conformer"}
#: sums of several hundred products, where the tolerance is for some hundred: a network of 512 hidden units
LONG_SUMS = {"swinv2": 4}


def module_of(entry: Entry, case: dict, dtype: torch.dtype) -> Encoding:
    """The encoding with tables of size 1, so that a wrong row is a large error."""
    torch.manual_seed(zlib.crc32(f"{entry.name} {case}".encode()))
    encoding = entry.cls(**case)
    for parameter in encoding.parameters():
        nn.init.normal_(parameter)
    return encoding.to(dtype)


def positions_from(first: int, length: int, row_step: int = 3) -> Positions:
    """Consecutive positions; the second row stands ``row_step`` further on."""
    slots_T = torch.arange(first, first + length)
    return Positions(ids_BT=slots_T + row_step * torch.arange(BATCH)[:, None], slots_T=slots_T)


def positions_of(encoding: Encoding, first: int, length: int) -> Positions:
    """About ``length`` tokens: consecutive, of an image from its first patch on, or with three axes."""
    if encoding.axes == 1:
        return positions_from(first, length)
    if encoding.axes == 2:
        # not square, after tokens that stand nowhere, of which there are none in a window
        side = math.isqrt(length)
        rows, columns = (side - 1, side + 1) if side > 1 else (1, 1)
        if encoding.windowed:
            return Positions.image(min(rows, encoding.window), min(columns, encoding.window))
        return Positions.image(rows, columns, prefix=getattr(encoding, "prefix", 2) if length > 1 else 0)
    at_T = torch.arange(length)
    base_ABT = torch.stack([at_T, at_T // 3, at_T % 5])[:, None] + 3 * torch.arange(BATCH)[:, None]
    here = positions_from(first, length)
    return Positions(here.ids_BT, here.slots_T, first + base_ABT)


def last(positions: Positions, count: int) -> Positions:
    """The last tokens of a call."""
    axes_ABT = None if positions.axes_ABT is None else positions.axes_ABT[..., -count:]
    return Positions(positions.ids_BT[:, -count:], positions.slots_T[-count:], axes_ABT, positions.grid)


def shown(positions: Positions) -> np.ndarray:
    """Positions as an oracle gets them."""
    at = positions.ids_BT if positions.axes_ABT is None else positions.axes_ABT.permute(1, 2, 0)
    return at.numpy()


def placed(encoding: Encoding, first: int) -> Positions:
    """Eleven positions from ``first`` on; of an image six patches, further to the lower right in it if ``first``."""
    if encoding.axes != 2:
        return positions_of(encoding, first, 11)
    block = Positions.image(3, 2)
    step_211 = torch.tensor([1, 2])[:, None, None] * min(first, 1)
    return Positions(block.ids_BT, block.slots_T, block.axes_ABT + step_211, Grid(4, 4))


def hook_answers(entry: Entry, case: dict, dtype: torch.dtype, queries: Positions, keys: Positions):
    """Of every hook that has an oracle: its name, the module's answer and the oracle's."""
    module = module_of(entry, case, dtype)
    params = {name: p.detach().double().numpy() for name, p in module.named_parameters()}
    T, S = len(queries.slots_T), len(keys.slots_T)
    D = case.get("head_size", 6)
    x = torch.randn(BATCH, T, case.get("hidden", 1)).to(dtype)
    q, k = torch.randn(BATCH, HEADS, T, D).to(dtype), torch.randn(BATCH, HEADS, S, D).to(dtype)
    probs = torch.randn(BATCH, HEADS, T, S).softmax(-1).to(dtype)
    where = (shown(queries), shown(keys))
    taken = {"q": q, "k": k, "probs": probs}

    calls = {
        "embed": lambda: (module.embed(x, queries), (x, where[0])),
        "rotate": lambda: (module.rotate(q, queries, "query"), (q, where[0])),
        "scores": lambda: (module.scores(q, k, queries, keys).dense(**taken), (q, k, *where)),
        "values": lambda: (module.values(queries, keys).dense(**taken), (probs, *where)),
    }
    with torch.no_grad():
        for hook, oracle in entry.oracles.items():
            got, args = calls[hook]()
            wide = [a if isinstance(a, np.ndarray) else a.double().numpy() for a in args]
            yield hook, got, oracle(*wide, params=params, **case)


def first_position(entry: Entry, case: dict, wanted: int, length: int) -> int:
    """``wanted``, or as near to it as the encoding's limit lets ``length`` tokens in both rows stand."""
    absolute = {"embed", "rotate"} & set(entry.oracles) or not entry.cls.shift_invariant
    limit = entry.cls(**case).limit if absolute else None
    return wanted if limit is None else max(0, min(wanted, limit - length - 3))


@pytest.mark.parametrize("length", [1, 17, 161])
@pytest.mark.parametrize(("entry", "case"), EVERY_CASE)
def test_float64_module_is_the_paper(entry, case, length):
    first = first_position(entry, case, 4099, length)
    keys = positions_of(entry.cls(**case), first, length)
    for queries in (keys, last(keys, 3)):
        for hook, got, want in hook_answers(entry, case, torch.float64, queries, keys):
            assert got.dtype == torch.float64
            # an angle of p radians is known to p eps
            factor = first + length if entry.name in OF_ANGLES or hook == "rotate" else LONG_SUMS.get(entry.name, 1)
            agree(got, want, "encoding", np.float64, factor)
            # (one token has only the distance 0, for which many a bias is 0)
            assert length == 1 or np.abs(want).max() > 0.1, f"{hook}: too small to tell right from wrong"


@pytest.mark.parametrize(("entry", "case"), EVERY_CASE)
def test_half_precision_holds_where_its_integers_end(entry, case):
    length = 17
    here = positions_of(entry.cls(**case), first_position(entry, case, 2041, length), length)
    for _, got, want in hook_answers(entry, case, torch.float16, here, here):
        assert got.dtype == torch.float16
        agree(got, want, "encoding in half precision", np.float16)


def test_some_case_of_every_absolute_encoding_passes_2048():
    for entry in ENCODINGS.values():
        limits = [entry.cls(**case).limit for case in entry.cases]
        if "embed" in entry.oracles or not entry.cls.shift_invariant:
            assert any(limit is None or limit > 2048 for limit in limits), entry.name


@pytest.mark.parametrize("entry", EVERY)
def test_oracles_stand_alone(entry, helpers_of):
    for oracle in entry.oracles.values():
        # one that is an operator's calls that alone: `tests/graph/ops/test_ops.py` asks the same of it
        if "oracle_of" not in oracle.__qualname__:
            assert not helpers_of(oracle), "an oracle may not call the code it checks"


def answer(encoding: Encoding, x_BTC: torch.Tensor, positions: Positions) -> torch.Tensor:
    """One attention over the tokens themselves, with all that the encoding does."""
    x_BTC = encoding.embed(x_BTC, positions)
    x_BHTD = x_BTC.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    q, k = encoding.rotate(x_BHTD, positions, "query"), encoding.rotate(x_BHTD, positions, "key")
    scores, values = encoding.scores(q, k, positions, positions), encoding.values(positions, positions)
    out = attend(q, k, x_BHTD, scale=0.5, scores=scores, values=values)
    return out.transpose(1, 2).flatten(2).detach()


def small(entry: Entry, layer: int = 0) -> Encoding:
    """The encoding for tokens of `SIZES`, in float64, with tables of size 1."""
    torch.manual_seed(5)
    encoding = build(entry.name, SIZES, {})[0].in_layer(layer)
    for parameter in encoding.parameters():
        nn.init.normal_(parameter)
    return encoding.double()


@pytest.mark.parametrize("entry", EVERY)
def test_only_the_control_cannot_tell_the_order_of_tokens(entry):
    encoding = small(entry)
    here = positions_of(encoding, 0, 11)
    tokens = len(here.slots_T)
    x_BTC = torch.randn(BATCH, tokens, SIZES["hidden"], dtype=torch.float64)
    # not their reversal, which a bias that is the same to both sides does not tell
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(1))
    turned = answer(encoding, x_BTC[:, order], here)[:, order.argsort()]
    plain = answer(encoding, x_BTC, here)
    if entry.oracles:
        assert (turned - plain).abs().amax((1, 2)).min() > 0.05 * plain.abs().max()
    else:
        agree(turned, plain, "attention", np.float64)


@pytest.mark.parametrize("entry", EVERY)
def test_shift_invariance_is_as_declared(entry):
    encoding = small(entry)
    # far past every boundary, where one may be passed
    far = 7 if encoding.limit is not None else 7 + 9 * max(encoding.boundaries, default=0)
    here, there = (placed(encoding, first) for first in (0, far))
    x_BTC = torch.randn(BATCH, len(here.slots_T), SIZES["hidden"], dtype=torch.float64)
    plain, moved = (answer(encoding, x_BTC, at) for at in (here, there))
    if not entry.cls.shift_invariant:
        assert (moved - plain).abs().max() > 0.01 * plain.abs().max()
    elif "rotate" in entry.oracles:  # the same angles between queries and keys, known to so many eps
        agree(moved, plain, "attention", np.float64, far)
    else:
        agree(moved, plain, "same values", np.float64)


@pytest.mark.parametrize("entry", EVERY)
def test_parameters_of_layers(entry):
    encoding, _ = build(entry.name, SIZES, {})
    first, second = encoding.in_layer(0), encoding.in_layer(1)
    shared = {n.split(".")[0] for n, p in first.named_parameters() if any(p is other for other in second.parameters())}
    if entry.cls.per_layer:
        assert first is not second
        assert list(first.parameters())
        assert shared <= set(entry.cls.tied)
        assert shared < {n.split(".")[0] for n, _ in first.named_parameters()}
        assert first.parameters_given == encoding.parameters_given
    else:
        assert first is second is encoding


@pytest.mark.parametrize("entry", EVERY)
def test_parameters_given_rebuild_the_encoding(entry):
    for case in entry.cases:
        encoding = entry.cls(**case)
        again = entry.cls(**encoding.parameters_given)
        assert set(case) <= set(encoding.parameters_given)
        assert {n: p.shape for n, p in again.named_parameters()} == {n: p.shape for n, p in encoding.named_parameters()}
        assert (again.trained_length, again.limit) == (encoding.trained_length, encoding.limit)


# capabilities


@pytest.mark.parametrize("entry", EVERY)
def test_hooks_are_those_that_the_class_overrides(entry):
    overridden = [hook for hook in HOOKS if getattr(entry.cls, hook) is not getattr(Encoding, hook)]
    assert list(entry.cls.hooks) == overridden
    assert list(entry.cls.attention_hooks) == [hook for hook in overridden if hook != "embed"]


def test_what_few_encodings_declare():
    classes = {name: entry.cls for name, entry in ENCODINGS.items()}
    assert {name for name, cls in classes.items() if not cls.hooks} == {"nope"}
    assert {name for name, cls in classes.items() if cls.windowed} == {"swin", "swinv2"}
    assert {name for name, cls in classes.items() if cls.cosine_scores} == {"swinv2"}
    until = {entry.name: small(entry).cached_keys_until for entry in ENCODINGS.values()}
    assert {name: length for name, length in until.items() if length is not None} == {"rope-longrope": 40}


# limits


@pytest.mark.parametrize(
    ("name", "given", "trained", "limit", "boundaries"),
    [
        ("nope", {}, None, None, []),
        ("sinusoidal", {}, None, None, []),
        ("absolute", {}, 40, 40, [40]),
        ("learned", {"offset": "2"}, 40, 40, [40]),
        ("relative-key", {"max_positions": "33"}, 33, 33, [33]),
        ("relative-key-query", {}, 40, 40, [40]),
        ("shaw-k", {}, None, None, [17]),
        ("shaw-kv", {"clip": "3"}, None, None, [4]),
    ],
)
def test_limits(name, given, trained, limit, boundaries):
    encoding, _ = build(name, SIZES, given)
    assert encoding.trained_length == trained
    assert encoding.limit == limit
    assert encoding.boundaries == boundaries
    assert encoding.beyond == "error"


@pytest.mark.parametrize("name", ["relative-key", "relative-key-query"])
def test_clipped_takes_the_last_rows(name):
    trained = small(ENCODINGS[name])
    clipped = trained.clipped()
    assert clipped.table is trained.table
    assert (clipped.trained_length, clipped.limit, clipped.beyond, clipped.boundaries) == (40, None, "clip", [40])
    assert clipped.in_layer(3).beyond == "clip"
    assert (trained.limit, trained.beyond) == (40, "error")
    q, k = torch.randn(2, BATCH, HEADS, 97, 4, dtype=torch.float64).unbind()
    here = positions_from(0, 97)
    term = clipped.scores(q, k, here, here)
    got = term.dense(q=q, k=k).detach()
    # as if the table had been built for length 97, every farther distance holding the nearest row's vector
    table = trained.table.detach().numpy()
    wide = np.concatenate([np.repeat(table[:1], 57, 0), table, np.repeat(table[-1:], 57, 0)])
    case = {"max_positions": 97, "head_size": 4}
    ids = here.ids_BT.numpy()
    want = ENCODINGS[name].oracles["scores"](q.numpy(), k.numpy(), ids, ids, params={"table": wide}, **case)
    agree(got, want, "encoding", np.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("offset", "overhead"), [(0, 0), (2, 0), (0, 2), (3, 2)])
def test_interpolated_table_is_linear_and_keeps_both_ends(offset, overhead, dtype):
    trained = module_of(ENCODINGS["learned"], {"max_positions": 30, "hidden": 7, "offset": offset}, dtype)
    stretched = trained.interpolated(71, overhead=overhead)
    old, new = trained.table.detach().double().numpy(), stretched.table.detach().double().numpy()
    kept = offset + overhead
    assert stretched.table.dtype == dtype
    assert new.shape == (kept + 71, 7)
    assert np.array_equal(new[:kept], old[:kept])
    assert np.array_equal(new[[kept, -1]], old[[kept, -1]])
    rows = 30 - overhead
    wanted = [np.interp(np.linspace(0, rows - 1, 71), np.arange(rows), old[kept:, c]) for c in range(7)]
    wanted = np.stack(wanted, 1)
    if dtype == torch.float64:
        agree(new[kept:], wanted, "encoding", np.float64)
    else:  # computed in float64, rounded once: half a unit in the last place
        unit = np.spacing(np.abs(stretched.table.detach().numpy()[kept:])).astype(np.float64)
        assert (np.abs(new[kept:] - wanted) <= 0.5000001 * unit).all()
    assert (stretched.trained_length, stretched.limit) == (30, 71 + overhead)
    assert stretched.boundaries == [30, 71 + overhead]
    assert stretched.beyond == "interpolate"
    assert stretched.parameters_given["trained"] == 30
    assert trained.limit == 30
    again = stretched.interpolated(90, overhead=overhead)
    assert (again.trained_length, again.limit) == (30, 90 + overhead)
    x = torch.zeros(1, 71, 7, dtype=dtype)
    agree(stretched.embed(x, positions_from(overhead, 71, 0)).detach()[:1], new[None, kept:], "same values", np.float64)


def test_interpolating_one_row_repeats_it():
    trained = module_of(ENCODINGS["absolute"], {"max_positions": 1, "hidden": 7}, torch.float64)
    assert torch.equal(trained.interpolated(5).table, trained.table.expand(5, 7))


@pytest.mark.parametrize(
    ("name", "beyond", "reason"),
    [
        ("nope", "clip", "takes inputs of any length"),
        ("nope", "interpolate", "takes inputs of any length"),
        ("sinusoidal", "clip", "takes inputs of any length"),
        ("sinusoidal", "interpolate", "takes inputs of any length"),
        ("shaw-k", "clip", "takes inputs of any length"),
        ("shaw-kv", "interpolate", "takes inputs of any length"),
        ("absolute", "clip", "needs a table of distances"),
        ("learned", "clip", "needs a table of distances"),
        ("relative-key", "interpolate", "needs a table of absolute positions"),
        ("relative-key-query", "interpolate", "needs a table of absolute positions"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(name, beyond, reason):
    encoding, _ = build(name, SIZES, {})
    with pytest.raises(PosexportError, match=f"--beyond {beyond} does not fit the encoding {name}: .*{reason}"):
        encoding.clipped() if beyond == "clip" else encoding.interpolated(80)


@pytest.mark.parametrize("length", [1, 39, 40])
def test_interpolation_must_lengthen(length):
    encoding, _ = build("absolute", SIZES, {})
    with pytest.raises(PosexportError, match=f"above the 40 positions .* got {length}"):
        encoding.interpolated(length)


class Holder(nn.Module):
    """A model that holds one encoding in several places, or one for each layer."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), encoding.in_layer(i)) for i in range(2))
        self.bare = nn.ModuleList([encoding])

    def encodings(self) -> list[Encoding]:
        return [self.encoding, self.layers[0][1], self.layers[1][1], self.bare[0]]


def test_extend_replaces_shared_encodings_by_one():
    model = Holder(build("absolute", SIZES, {})[0]).eval()
    linear = model.layers[0][0]
    extend(model, "interpolate", 64)
    assert len({id(e) for e in model.encodings()}) == 1
    assert model.encoding.limit == 64
    assert not model.encoding.training
    assert model.layers[0][0] is linear
    assert [n for n, _ in model.named_parameters() if "table" in n] == ["encoding.table"]
    assert model.encoding.table.shape == (64, 20)


def test_extend_keeps_the_parameters_of_every_layer():
    model = Holder(build("relative-key", SIZES, {})[0])
    before = [encoding.table for encoding in model.encodings()]
    names = list(model.state_dict())
    extend(model, "clip")
    assert [encoding.limit for encoding in model.encodings()] == [None] * 4
    assert all(encoding.table is table for encoding, table in zip(model.encodings(), before, strict=True))
    assert list(model.state_dict()) == names


def test_extend_passes_the_overhead_on():
    model = Holder(build("absolute", SIZES, {})[0])
    rows = model.encoding.table[:2].clone()
    extend(model, "interpolate", 64, overhead=2)
    assert model.encoding.limit == 66
    assert torch.equal(model.encoding.table[:2], rows)


def test_extend_error_changes_nothing():
    model = Holder(build("relative-key", SIZES, {})[0])
    before = model.encodings()
    extend(model, "error")
    assert all(a is b for a, b in zip(model.encodings(), before, strict=True))


@pytest.mark.parametrize(
    ("encodings", "beyond", "length", "message"),
    [
        (["relative-key", "nope"], "clip", None, "does not fit the encoding nope"),
        (["absolute", "relative-key"], "interpolate", 80, "does not fit the encoding relative-key"),
        (["absolute"], "interpolate", None, "needs --max-length"),
        (["relative-key"], "clip", 80, "takes no --max-length, got 80"),
        ([], "clip", None, "holds no encoding"),
    ],
)
def test_extend_refuses_and_leaves_the_model_as_it_was(encodings, beyond, length, message):
    model = nn.ModuleList([nn.Linear(2, 2), *(build(name, SIZES, {})[0] for name in encodings)])
    before = list(model)
    with pytest.raises(PosexportError, match=message):
        extend(model, beyond, length)
    assert all(a is b for a, b in zip(model, before, strict=True))


def test_extend_wants_a_model():
    with pytest.raises(PosexportError, match="got the encoding relative-key itself"):
        extend(build("relative-key", SIZES, {})[0], "clip")


# building and registering


@pytest.mark.parametrize("entry", EVERY)
def test_every_encoding_is_built_from_a_models_sizes(entry):
    encoding, used = build(entry.name, SIZES, {"unknown": "1"})
    assert type(encoding) is entry.cls
    assert used <= set(SIZES)
    assert used <= set(encoding.parameters_given)


def test_settings_become_the_constructors_types():
    encoding, used = build("sinusoidal", SIZES, {"base": "500", "layout": "half", "hidden": "9", "clip": "3"})
    assert encoding.parameters_given.items() >= {"hidden": 9, "layout": "half", "base": 500.0, "joined": "sum"}.items()
    assert used == {"hidden", "layout", "base"}


@pytest.mark.parametrize(
    ("name", "sizes", "given", "message"),
    [
        ("relative-kay", SIZES, {}, "unknown encoding 'relative-kay'; did you mean relative-key"),
        ("shaw-k", {}, {}, "needs head_size: add --set head_size=VALUE"),
        ("shaw-k", SIZES, {"clip": "many"}, "shaw-k: clip must be a whole number, got 'many'"),
        ("shaw-k", SIZES, {"clip": "-1"}, "shaw-k: clip must be a whole number from 0 on, got -1"),
        ("shaw-kv", SIZES, {"head_size": "0"}, "shaw-kv: head_size must be a whole number from 1 on, got 0"),
        ("absolute", SIZES, {"max_positions": "0"}, "max_positions must be a whole number from 1 on, got 0"),
        ("absolute", SIZES, {"hidden": "2.5"}, "absolute: hidden must be a whole number, got '2.5'"),
        ("learned", SIZES, {"offset": "-2"}, "learned: offset must be a whole number from 0 on, got -2"),
        ("relative-key", SIZES, {"max_positions": "0"}, "relative-key: max_positions must be .* from 1 on, got 0"),
        ("sinusoidal", SIZES, {"layout": "quarter"}, "layout must be one of interleaved, half, got 'quarter'"),
        ("sinusoidal", SIZES, {"base": "ten"}, "sinusoidal: base must be a number, got 'ten'"),
        ("sinusoidal", SIZES, {"base": "nan"}, "base must be a finite number above 1, got nan"),
        ("sinusoidal", SIZES, {"base": "1"}, "base must be a finite number above 1, got 1.0"),
    ],
)
def test_bad_settings_get_one_sentence(name, sizes, given, message):
    with pytest.raises(PosexportError, match=message):
        build(name, sizes, given)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("sinusoidal", {"hidden": 4, "layout": "quarter"}, "layout must be interleaved or half, got 'quarter'"),
        ("relative-key", {"head_size": 4, "beyond": "interpolate"}, "beyond must be error or clip, got 'interpolate'"),
        ("absolute", {"hidden": 4, "max_positions": 9, "trained": 10}, "trained=10 must be at most max_positions=9"),
        ("absolute", {"hidden": 4.0}, "hidden must be a whole number from 1 on, got 4.0"),
        ("absolute", {"hidden": True}, "hidden must be a whole number from 1 on, got True"),
    ],
)
def test_constructors_check_what_a_python_file_may_give(name, arguments, message):
    with pytest.raises(PosexportError, match=message):
        ENCODINGS[name].cls(**arguments)


def test_what_beyond_sets_is_no_setting():
    encoding, used = build("relative-key", SIZES, {"beyond": "clip"})
    assert encoding.beyond == "error"
    assert "beyond" not in used


class Hooked(Encoding):
    """Overrides one hook."""

    def values(self, queries, keys):
        return super().values(queries, keys)


class Bare(Encoding):
    """Overrides none."""


class Undocumented(Hooked):
    pass


@pytest.mark.parametrize(
    ("cls", "name", "arguments", "message"),
    [
        (Hooked, "new", {"cases": [{}]}, r"hooks \['values'\] are overridden, oracles are given for \[\]"),
        (Hooked, "new", {"cases": [{}], "scores": np.add}, r"oracles are given for \['scores'\]"),
        (Hooked, "new", {"cases": [{}], "values": np.add, "control": True}, "a control has no hook"),
        (Bare, "new", {"cases": [{}]}, "any other encoding at least one"),
        (Bare, "new", {"cases": [{}], "values": np.add}, r"hooks \[\] are overridden"),
        (Hooked, "new", {"cases": [], "values": np.add}, "no cases"),
        (Hooked, "nope", {"cases": [{}], "values": np.add}, "registered twice"),
        (Undocumented, "new", {"cases": [{}], "values": np.add}, "no docstring"),
    ],
)
def test_registration_refuses(cls, name, arguments, message):
    before = dict(ENCODINGS)
    with pytest.raises(ValueError, match=message):
        register(name, source="a test", **arguments)(cls)
    assert before == ENCODINGS
    assert cls.name == cls.__name__


@pytest.mark.parametrize("entry", EVERY)
def test_catalogue_says_what_and_whence(entry):
    assert entry.cls.name == entry.name
    assert entry.summary == entry.cls.__doc__.splitlines()[0] != ""
    assert "arXiv:" in entry.source
