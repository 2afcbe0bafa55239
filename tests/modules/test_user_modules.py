"""Modules of users: whatever they do is one sentence and exit code 2; their limit is found and guarded.

The modules are small files, as users write them; none of them uses anything of posexport.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import posexport.conversion.convert
from posexport.base.spec import InputSpec, LengthContract, Limits, OutputSpec, Promises
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.modules.axes import largest
from posexport.proof.grid.grid import grid
from posexport.proof.grid.point import GridPoint
from posexport.proof.invariants import check as invariants
from posexport.proof.judges import Criterion
from posexport.run.bundle.read import read
from posexport.run.load import load as load_bundle
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.torch_fixes.module_precision import in_precision
from tests.small import in_short
from tests.tolerances import agree

SOURCE = '''
import sys
import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)

    def forward(self, x, mask=None):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).reshape(B, T, D))


class Table(nn.Module):
    """Two layers on a table of learned positions."""

    rows, longest = 40, None

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.table = nn.Embedding(V, D), nn.Parameter(torch.randn(self.rows, D))
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, input_ids, attention_mask):
        T = input_ids.shape[1]
        if self.longest and T > self.longest:
            raise ValueError("too long")
        x = self.token(input_ids) + self.table[:T]
        # the dtype of what this makes is PyTorch's default one
        mask = torch.where(attention_mask[:, None, None, :] != 0, 0.0, torch.finfo(x.dtype).min)
        for block in self.blocks:
            x = block(x, mask)
        return x


class Raises(Table):
    rows, longest = 200, 64


class Items(Table):
    def forward(self, input_ids, attention_mask):
        n = int(attention_mask.sum(1).max().item())
        return super().forward(input_ids, attention_mask)[:, :n]


class Infinite(Table):
    """What every second implementation does: rows whose keys are all masked become NaN."""

    def forward(self, input_ids, attention_mask):
        T = input_ids.shape[1]
        x = self.token(input_ids) + self.table[:T]
        seen = (attention_mask[:, None, None, :] != 0) & torch.ones(T, T, dtype=torch.bool).tril()
        for block in self.blocks:
            q, k, v = block.qkv(x).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)
            scores = (q @ k.mT).masked_fill(~seen, float("-inf"))
            x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return x


class Bag(nn.Module):
    """Attention without positions: permuted tokens give permuted outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.block = nn.Embedding(V, D), Block()

    def forward(self, input_ids):
        return self.block(self.token(input_ids))


class Distances(Bag):
    """A bias by distance: no limit."""

    def forward(self, input_ids):
        at = torch.arange(input_ids.shape[1], device=input_ids.device)
        bias = -(at[:, None] - at).abs().to(self.token.weight.dtype)
        return self.block(self.token(input_ids), bias.expand(1, H, -1, -1))


class Regrown(Bag):
    # other rows in a longer table
    def __init__(self):
        super().__init__()
        self.make(32)

    def make(self, rows):
        self.cached = rows
        angles = torch.arange(rows)[:, None] / torch.arange(1, D + 1) / rows
        self.register_buffer("waves", angles.sin(), persistent=False)

    def forward(self, input_ids):
        T = input_ids.shape[1]
        if T > self.cached:
            self.make(T)
        return self.block(self.token(input_ids) + self.waves[:T])


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(50, D)), nn.Parameter(torch.randn(30, D))

    def forward(self, x, memory):
        memory = memory + self.second[: memory.shape[1]]
        return F.scaled_dot_product_attention(x + self.first[: x.shape[1]], memory, memory)


class Does(nn.Module):
    """An embedding, and what a test asks for; it counts its calls."""

    def __init__(self, what):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.what, self.calls = nn.Embedding(V, D), what, 0

    def forward(self, input_ids):
        self.calls += 1
        return self.what(self, self.token(input_ids))


def fail(err):
    raise err


IDS = torch.arange(32).reshape(2, 16) % V
MASKED = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
X = torch.randn(2, 16, D)
does = lambda what: lambda: (Does(what), {"input_ids": IDS})
tracing = torch.compiler.is_compiling

table = lambda: (Table(), MASKED)
raises = lambda: (Raises(), MASKED)
items = lambda: (Items(), MASKED)
infinite = lambda: (Infinite(), MASKED)
bag = lambda: (Bag(), {"input_ids": IDS})
distances = lambda: (Distances(), (IDS,))
lone = lambda: (Distances(), IDS)
regrown = lambda: (Regrown(), {"input_ids": IDS})
cross = lambda: (Cross(), (X, X[:, :5]), {"memory": ["batch_size", "encoder_sequence_length", D]})
short = lambda: (type("Short", (Table,), {"rows": 7})(), {name: x[:, :6] for name, x in MASKED.items()})
trained = lambda: (nn.Sequential(nn.Linear(D, 5), nn.Dropout(0.5)), {"input": X})
complexes = lambda: (Complexes(), {"input_ids": IDS})
instance = Bag()
many = lambda: (Bag(), (IDS, IDS))
batch = lambda: (Bag(), {"input_ids": IDS}, {"input_ids": ["batch", "sequence_length"]})
seq = lambda: (Bag(), {"input_ids": IDS}, {"input_ids": ["N", "seq"]})
two = lambda: (Bag(), {"input_ids": IDS}, {"input_ids": ["length", "seq"]})
odd_name = lambda: (Bag(), {"input ids": IDS})
two_lengths = lambda: (Cross(), (X, X[:, :5]), dict.fromkeys(("x", "memory"), ["batch_size", "sequence_length", D]))
uncopied = lambda: (type("Lock", (Bag,), {"__deepcopy__": lambda self, memo: fail(TypeError("cannot pickle"))})(), IDS)

nan = does(lambda self, x: x / 0.0 * 0.0)
small_numbers = does(lambda self, x: x.argmax(-1).to(torch.uint8))
double = does(lambda self, x: x.double())
spectrum = does(lambda self, x: torch.fft.rfft(x))
first_call = does(lambda self, x: x if self.calls > 1 else x + 0 * self.token.weight.data.add_(x.mean()).sum())
exits = does(lambda self, x: sys.exit(0))
not_an_exception = does(lambda self, x: fail(BaseException("odd")))
speechless = does(lambda self, x: fail(type("E", (Exception,), {"__str__": lambda self: 1 / 0})()))
fixed = does(lambda self, x: x + torch.zeros(16, D))
counts = does(lambda self, x: x + self.calls)
random = does(lambda self, x: F.dropout(x, 0.5, True))
float32 = does(lambda self, x: x if x.dtype.itemsize == 4 else fail(ValueError("float32 alone")))
one_length = does(lambda self, x: fail(KeyError("65")) if x.shape[1] == 65 else x)
many_calls = does(lambda self, x: sys.exit(0) if self.calls > 9 and x.dtype == torch.float64 else x)
branches = does(lambda self, x: x if x.sum() > 0 else -x)
exits_in_trace = does(lambda self, x: sys.exit(0) if tracing() else x)
other_in_trace = does(lambda self, x: x[0] if tracing() else x)
more_in_trace = does(lambda self, x: (x, x * 2) if tracing() else x)
grows_later = does(lambda self, x: (x, x) if x.shape[1] == 17 else x)
wider_later = does(lambda self, x: F.pad(x, (0, 1)) if x.shape[1] == 17 else x)
interrupted = does(lambda self, x: fail(KeyboardInterrupt()))


class Complexes(Bag):
    """The rotation of the first Llama, on a complex buffer."""

    def __init__(self):
        super().__init__()
        turns = torch.arange(50)[:, None] / torch.arange(1, D // 2 + 1)
        self.register_buffer("turns", torch.polar(torch.ones_like(turns), turns), persistent=False)

    def forward(self, input_ids):
        x = torch.view_as_complex(self.token(input_ids).unflatten(-1, (D // 2, 2)))
        return self.block(torch.view_as_real(x * self.turns[: x.shape[1]]).flatten(2))
'''

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "models.py"
    path.write_text(SOURCE)
    return path


# -- one sentence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        # what it returns
        ("items", "it depends on the values of attention_mask (`.item()`, models.py line"),
        ("nan", "output output holds NaN where nothing is padded"),
        ("small_numbers", "output output is torch.uint8; posexport compares torch.float32, int64, int32 and bool"),
        ("double", "output output is torch.float64; posexport compares torch.float32"),
        ("spectrum", "int32 and bool: return it as two numbers, by torch.view_as_real"),
        ("first_call", "the module sets its parameter token.weight in its first call, by the values of its inputs"),
        ("counts", "changes from call to call with the same inputs"),
        ("random", "changes from call to call with the same inputs"),
        # what it raises
        ("exits", "SystemExit: 0 (models.py line"),
        ("not_an_exception", "BaseException: odd (models.py line"),
        ("speechless", "(the example's): E"),
        ("float32", "in float64, the precision of the reference (models.py line"),
        ("uncopied", "the module cannot be copied, and the proof needs copies of it in two precisions"),
        # what the factory returns
        ("instance", "models.py:instance is a module, not a factory: write a function that returns (model, inputs)"),
        ("many", "2 inputs for a forward with the parameters input_ids"),
        ("two", "the axes 'length' and 'seq' both look like sequence_length; call each one of batch_size"),
        ("odd_name", "input 'input ids' cannot be the name of an argument of forward"),
        ("two_lengths", "axis sequence_length has the size 16 in the example's x and 5 in its memory"),
    ],
)
def test_what_cannot_be_converted_is_known_before_the_export(models: Path, factory: str, words: str) -> None:
    with pytest.raises(PosexportError) as said:
        load_source(f"{models}:{factory}", LoadOptions())
    assert words in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("factory", "remark"),
    [
        ("batch", "axis 'batch' is batch_size in the bundle"),
        ("seq", "axis 'N' is batch_size in the bundle; axis 'seq' is sequence_length in the bundle"),
    ],
)
def test_axes_may_have_any_names(models: Path, factory: str, remark: str) -> None:
    source = load_source(f"{models}:{factory}", LoadOptions())
    assert source.inputs[0].axes == ["batch_size", "sequence_length"]
    assert remark in source.remarks


@pytest.mark.all(but=("one_length", "grows_later", "many_calls", "branches"))
@pytest.mark.parametrize(
    ("factory", "lengths", "words"),
    [
        ("branches", (), "decides in Python by a tensor's values"),
        ("exits_in_trace", (), "cannot be traced: SystemExit"),
        ("other_in_trace", (), "was traced with 2 axes"),
        ("more_in_trace", (), "gives 2 outputs, declared ['output']"),
        ("one_length", (64, 65), "raised KeyError(\"'65'\") at length 65, batch 1 (models.py line"),
        ("one_length", (64, 65), "and took 64. If that is its limit, convert with --max-length 64."),
        ("many_calls", (3, 4, 5, 6, 7, 8, 9), "the module raised SystemExit('0') at length"),
        ("grows_later", (17,), "the module returned the outputs ['output_0', 'output_1'] at length 17, batch 1"),
        ("wider_later", (17,), "output output has the shape [1, 17, 13] at length 17, batch 1, and [1, 17, 12] was"),
        ("infinite", (5,), "of the module itself is NaN or infinite at length 5, batch 1, left padding"),
    ],
)
def test_what_fails_later_is_one_sentence_too(
    run: Command, models: Path, tmp_path: Path, factory: str, lengths: tuple[int, ...], words: str
) -> None:
    given = [part for length in lengths for part in ("--length", str(length))]
    code, out, err = run("convert", f"{models}:{factory}", "-o", tmp_path / "b", *given)
    said = err.splitlines()[-1]
    assert (code, out) == (2, ""), err
    assert words in said
    assert said.startswith("posexport: ")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_not_the_module_s(run: Command, models: Path, tmp_path: Path) -> None:
    code, _, err = run("convert", f"{models}:interrupted", "-o", tmp_path / "b")
    assert code == 130
    assert "interrupted" in err


def test_an_error_under_json_is_a_document(run: Command, models: Path, tmp_path: Path) -> None:
    code, out, err = run("convert", f"{models}:items", "-o", tmp_path / "b", "--json")
    found = json.loads(out)
    assert (code, found["exit_code"]) == (2, 2)
    assert err == f"posexport: {found['error']}\n"
    code, out, _ = run("convert", "--json")
    assert "Missing argument" in json.loads(out)["error"]
    assert code == json.loads(out)["exit_code"] == 2


def test_a_defect_asks_for_a_report(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posexport.conversion.convert, "convert", lambda *_, **__: [][1])  # noqa: PLE0643 (the defect)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code, out, err = run("convert", "encoder-nope", "-o", tmp_path / "b")
    assert (code, out) == (70, "")
    assert err.startswith("posexport: internal error, IndexError: list index out of range; this is a defect of")
    assert err.count("\n") == 1
    file = next(tmp_path.glob("posexport-defect-*.txt"))
    assert str(file) in err
    assert "IndexError: list index out of range" in file.read_text()
    assert "Traceback" in file.read_text()
    monkeypatch.setenv("POSEXPORT_TRACEBACK", "1")
    code, out, err = run("convert", "encoder-nope", "-o", tmp_path / "b", "--json")
    assert code == json.loads(out)["exit_code"] == 70
    assert "Traceback" in err


def test_the_traceback_of_a_user_s_module_can_be_asked_for(
    run: Command, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSEXPORT_TRACEBACK", "1")
    code, _, err = run("convert", f"{models}:float32", "-o", tmp_path / "b")
    assert code == 2
    assert 'models.py", line' in err


# -- the limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "limit", "axes", "reason"),
    [
        ("table", 40, ["sequence_length"], "at length 41 (models.py line"),
        ("raises", 64, ["sequence_length"], "the module raised ValueError('too long') at length 65 (models.py line"),
        ("short", 7, ["sequence_length"], "at length 8"),
        ("complexes", 50, ["sequence_length"], "at length 51"),
        ("regrown", 32, ["sequence_length"], "forward regrows waves (shape [32, 12]) at length 33 (shape [33, 12])"),
        ("cross", 30, ["sequence_length", "encoder_sequence_length"], "encoder inputs of at most 30 tokens"),
    ],
)
def test_the_limit_is_found(models: Path, factory: str, limit: int, axes: list[str], reason: str) -> None:
    source = load_source(f"{models}:{factory}", LoadOptions())
    assert (source.limits.max_length, source.limits.limited_axes) == (limit, axes)
    assert any(reason in remark for remark in source.remarks)
    assert source.further == []


@pytest.mark.parametrize("factory", ["distances", "lone", "bag", "one_length", "trained"])
def test_no_limit_is_made_up(models: Path, factory: str) -> None:
    source = load_source(f"{models}:{factory}", LoadOptions())
    assert source.limits.max_length is None
    assert {512, 1024} <= set(source.further)


def test_looking_for_the_limit_leaves_the_module_as_it_was(models: Path) -> None:
    module = load_source(f"{models}:regrown", LoadOptions()).module.module
    assert module.waves.shape == (32, 12)
    assert module.cached == 32


@pytest.mark.all(but=("table",))
@pytest.mark.parametrize(
    "factory", in_short(["table", "regrown", "short", "complexes"], ("table", "regrown").__contains__)
)
def test_the_limit_is_proven_and_guarded(run: Command, models: Path, tmp_path: Path, factory: str) -> None:
    code, out, err = run("convert", f"{models}:{factory}", "-o", tmp_path / "b")
    limit = {"table": 40, "regrown": 32, "short": 7, "complexes": 50}[factory]
    assert code == 0, out
    assert out.endswith(f", proven up to {limit} tokens\n")
    assert f"inputs of at most {limit} tokens are accepted" in err
    manifest = read(tmp_path / "b")
    assert manifest.limits.max_length == limit
    assert manifest.parity is not None
    assert manifest.parity.longest_passed == limit
    points = json.loads((tmp_path / "b" / "parity.json").read_text())["points"]
    assert {p["length"] for p in points if p["verdict"] == "rejected"} == {limit + 1, 2 * limit}
    feeds = {spec.name: np.ones((1, limit + 1), np.int64) for spec in manifest.inputs}
    with pytest.raises(PosexportError, match=f"{limit}"):
        load_bundle(tmp_path / "b").run(feeds)


@pytest.mark.all
def test_without_a_limit_the_verdict_says_how_far_it_goes(run: Command, models: Path, tmp_path: Path) -> None:
    code, out, _ = run("convert", f"{models}:distances", "-o", tmp_path / "b")
    assert code == 0, out
    manifest = read(tmp_path / "b")
    assert manifest.limits.max_length is None
    assert manifest.parity is not None
    assert manifest.parity.longest_passed is not None
    assert manifest.parity.longest_passed >= 1024
    assert out.endswith(f", proven up to {manifest.parity.longest_passed} tokens\n")
    assert "\n|   1024 |" in out
    code, out, _ = run("convert", f"{models}:distances", "-o", tmp_path / "b", "--force", "--max-length", "9")
    assert code == 0, out
    assert out.endswith(", proven up to 9 tokens\n")


@pytest.mark.all
def test_a_limit_can_be_made_smaller_not_larger(run: Command, models: Path, tmp_path: Path) -> None:
    code, _, err = run("convert", f"{models}:raises", "-o", tmp_path / "b", "--max-length", "65")
    assert code == 2
    assert "--max-length 65 is beyond the 64 tokens that" in err
    smaller = ["--max-length", "9", "--length", "9", "--length", "10"]
    code, out, err = run("convert", f"{models}:raises", "-o", tmp_path / "b", *smaller)
    assert code == 0, err
    assert "|     10 |   rejected |" in out
    code, out, err = run("verify", tmp_path / "b", "--against", f"{models}:raises", "--length", "9", "--length", "10")
    assert code == 0, out + err
    assert "rejected" in out


def test_training_mode_is_remarked(models: Path) -> None:
    source = load_source(f"{models}:trained", LoadOptions())
    assert source.remarks == ["the module was in training mode (Dropout 1); it is converted in eval mode"]
    assert not source.module.module.training


@pytest.mark.parametrize("limit", [11, 12, 40, 64, 512, 8192])
def test_search_finds_every_limit(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest, "available", lambda: 1 << 50)
    tried: list[int] = []

    def attempt(length: int) -> str:
        tried.append(length)
        return "" if length <= limit else f"no {length}"

    found = largest.search(attempt, 11, 8193)
    assert (found.limit, found.reason) == (limit, f"no {limit + 1}")
    assert len(tried) < 25


def test_search_stops_where_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest, "available", lambda: 1 << 50)
    found = largest.search(lambda _: "", 11, 8193)
    assert (found.size, found.limit) == (8193, None)


@pytest.mark.parametrize("limited", ["available", "_MEMORY"])
def test_search_keeps_to_its_memory(limited: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a table that fills what memory there is is looked for one token further, or by shapes alone."""
    tried = []

    def attempt(length: int) -> str:
        tried.append(length)
        torch.empty(16 * length**2)
        return "end" * (length > 256)

    room = 16 * 300**2 * 4
    monkeypatch.setattr(largest, "available", lambda: 2 * room if limited == "available" else 1 << 50)
    monkeypatch.setattr(largest, "_MEMORY", room)
    for most, longest in ((room, 257), (1 << 50, 257 if limited == "available" else 512)):
        tried.clear()
        assert largest.search(attempt, 11, 8193, lambda n: n <= 256, most).limit == 256
        assert max(tried) == longest
    tried.clear()
    found = largest.search(attempt, 11, 8193, lambda n: n <= 8193)
    assert (found.size, found.limit, max(tried)) == (8193, None, 256)
    assert found.cheap[-1] == 256


def test_search_keeps_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(largest.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(largest.time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(largest, "available", lambda: 1 << 50)
    tried = []

    def attempt(length: int) -> str:
        tried.append(length)
        clock[0] += (length / 512) ** 2
        return ""

    found = largest.search(attempt, 11, 8193)
    # a call at 1024 takes 4 seconds, one at 512 one
    assert max(tried) == 513
    assert found.limit is None
    assert found.cheap == [16, 32, 64, 128]


def test_further_lengths_are_points_without_padding() -> None:
    inputs = [InputSpec(name="x", dtype="int64", axes=["batch_size", "sequence_length"], role="tokens", size=3)]
    points = grid(Limits(), inputs, further=[64, 1024])
    assert [(p.batch, p.padding) for p in points if p.length == 1024] == [(1, "none")]
    assert len([p for p in points if p.length == 64]) == 1
    assert not [p for p in grid(Limits(), inputs, lengths=[5], further=[1024]) if p.length > 5]
    limited = grid(Limits(max_length=100), inputs, further=[64, 1024])
    assert [p.length for p in limited if p.length > 100] == [101, 101, 200]
    assert all(p.must_be_rejected for p in limited if p.length > 100)


def test_complex_buffers_keep_their_imaginary_part() -> None:
    module = nn.Module()
    module.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)))
    wide = in_precision(module, torch.float64)
    assert wide.turns.dtype == torch.complex128
    agree(wide.turns.imag, np.sin(np.arange(3.0)), "one rounding", np.float32)


# -- positions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        ("bag", "outputs follow the order of tokens, as the module's do: it has no positions"),
        ("distances", "outputs depend on the order of tokens"),
    ],
)
def test_whether_there_are_positions_is_tried(models: Path, tmp_path: Path, factory: str, name: str) -> None:
    options = ConvertOptions(lengths=[17])
    report = convert(f"{models}:{factory}", tmp_path / "b", options).report
    assert report is not None
    assert [item.verdict for item in report.invariants if item.name == name] == ["pass"]
    assert "skipped" not in {item.verdict for item in report.invariants}


@pytest.mark.parametrize("graph", ["ordered", "orderless"])
@pytest.mark.parametrize("definition", ["ordered", "orderless"])
def test_a_graph_that_has_other_positions_than_its_module_fails(definition: str, graph: str) -> None:
    runs = {
        "ordered": lambda feeds: [feeds["x"] * (1 + np.arange(feeds["x"].shape[1]))[None, :, None]],
        "orderless": lambda feeds: [feeds["x"] * 2],
    }
    axes = ["batch_size", "sequence_length", 3]
    promise = invariants.Promise(
        run=runs[graph],
        definition=runs[definition],
        inputs=[InputSpec(name="x", dtype="float32", axes=axes, role="values")],
        outputs=[OutputSpec(name="y", axes=axes)],
        limits=LengthContract(),
        promises=Promises(shift_invariant=False, padding_invariant=False),
        judge=Criterion("fp32"),
        exact=runs[definition],
    )
    found = list(invariants.check(promise, GridPoint(batch=3, length=9), {"y": 2e-6}))[-1]
    assert found.verdict == ("pass" if graph == definition else "fail")


def test_a_long_table_of_a_known_encoding_is_approached_not_tried_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16384 tokens at once would take gigabytes of scores."""
    path = tmp_path / "layer.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom posexport.encodings.positions import Positions\n"
        "from posexport.encodings.relative_key import RelativeKey\nfrom posexport.nn import attend\n\n\n"
        "class Layer(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.encoding = RelativeKey(max_positions=16384, head_size=6)\n\n"
        "    def forward(self, q, k, v):\n"
        "        at = Positions.counted(q.shape[2])\n"
        "        y = attend(q, k, v, scale=0.4, scores=self.encoding.scores(q, k, at, at))\n"
        "        if type(y) is torch.Tensor:  # and not a shape alone\n"
        "            LENGTHS.append(q.shape[2])\n"
        "        return y\n\n\n"
        "LENGTHS = []\n\n\n"
        "def make():\n"
        "    axes = ['batch_size', 5, 'sequence_length', 6]\n"
        "    x = torch.zeros(2, 5, 9, 6)\n"
        "    return Layer(), dict(q=x, k=x, v=x), dict(q=axes, k=axes, v=axes)\n"
    )
    monkeypatch.setattr("posexport.modules.axes.largest.available", lambda: 1 << 29)
    source = load_source(f"{path}:make", LoadOptions())
    assert source.limits.max_length == 16384
    layer = next(part for part in source.module.modules() if type(part).__name__ == "Layer")
    assert 256 <= max(type(layer).forward.__globals__["LENGTHS"]) <= 2048


class Scaled(nn.Module):
    """Takes a number beside its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(31, 12)

    def forward(self, input_ids: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
        return self.words(input_ids) * strength


def test_an_input_may_be_a_number(tmp_path: Path) -> None:
    module, ids = Scaled().eval(), torch.arange(10).reshape(2, 5)
    examples = {"input_ids": ids, "strength": torch.tensor(0.5)}
    done = convert(module, tmp_path / "b", ConvertOptions(lengths=(1, 7), threads=1, example_inputs=examples))
    assert done.good
    assert done.manifest is not None
    assert [spec.axes for spec in done.manifest.inputs] == [["batch_size", "sequence_length"], []]
    got = load_bundle(tmp_path / "b").run({"input_ids": ids.numpy(), "strength": np.float32(3)})["output"]
    agree(got, module(ids, torch.tensor(3.0)).detach().numpy(), "attention", np.float32)
