"""What unused slots of a static KV cache hold never matters, in what `posexport convert --cache static` writes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from posexport.base.spec import CAPACITY, InputSpec, OutputSpec
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.graph.builder import Builder
from posexport.graph.lowering import static
from posexport.graph.lowering.static import Product, used_context
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import UNUSED, draw, roomy, size_of, unused_kind, unused_slots
from posexport.proof.subjects.runner import in_calls
from posexport.run.load import load
from posexport.sources.builtin import builtin_source as builtin
from posexport.sources.prepare import with_kv_cache
from tests.small import in_short
from tests.tolerances import within

Array = NDArray[Any]
#: heads of 16, which GroupQueryAttention takes
SIZES = ("layers=2", "hidden=64", "heads=4", "feedforward=24", "vocab=61")
SLOTS = 32
#: tokens of padding on the left of each row
PADDED = (0, 3, 9)
FILLS = (np.nan, np.inf, -np.inf, 1e38)
#: used slots before the calls, and the new tokens of each call
CALLS = [
    # decode steps: few used, more than half, nearly all, all
    *((before, (1,)) for before in (2, 11, 20, 21, 27, 30, 31)),
    *((before, (3,)) for before in (2, 11, 20, 25, 28)),
    *((0, (length,)) for length in (1, 5, 17, 28, 31, 32)),
    # in parts, over every switch; rows begin in different calls, and attend to padding alone until then
    (0, (8, 8, 8, 4, 1, 1, 1)),
    (0, (1,) * 31),
]
KINDS = [
    ("decoder-rope", ("kv_heads=2",), "at-write"),
    ("decoder-rope", (), "at-read"),
    ("decoder-rope", ("kv_heads=2", "sinks=true"), "at-write"),
    ("decoder-alibi", (), "at-write"),
    ("decoder-relative-key", (), "at-write"),
    ("decoder-relative-key-query", (), "at-write"),
    ("decoder-shaw-kv", (), "at-write"),
    ("decoder-cope", (), "at-write"),
]


class Decoder:
    """A bundle with a static KV cache in a plain session of ONNX Runtime."""

    def __init__(self, bundle: Path) -> None:
        loaded = load(bundle, threads=1)
        self.session = loaded._chain.links[-1].session
        self.caches = [spec for spec in loaded.inputs if spec.role == "cache"]
        self.outputs = [spec.name for spec in loaded.outputs]
        rng = np.random.default_rng(0)
        self.mask = np.array([[0] * pads + [1] * (SLOTS - pads) for pads in PADDED], np.int64)
        self.ids = rng.integers(2, 61, self.mask.shape) * self.mask

    def feeds(self, used: int, new: int) -> dict[str, Array]:
        end = used + new
        return {"input_ids": self.ids[:, used:end], "attention_mask": self.mask[:, :end]}

    def empty(self, fill: float) -> list[Array]:
        shapes = ([{CAPACITY: SLOTS}.get(str(axis), axis) for axis in spec.axes[1:]] for spec in self.caches)
        return [np.full((len(PADDED), *shape), fill, np.float32) for shape in shapes]

    def run(
        self, calls: Sequence[int], fill: float, before: Sequence[Array] = (), used: int = 0
    ) -> tuple[Array, list[Array]]:
        """Logits of all calls, [B, T, V], and the caches; ``before``: caches whose first ``used`` slots are used."""
        held, logits = self.empty(fill), []
        for new in calls:
            for array, kept in zip(held, before, strict=bool(before)):
                array[:, :, :used] = kept[:, :, :used]
            names = [spec.name for spec in self.caches]
            feeds = self.feeds(used, new) | dict(zip(names, held, strict=True))
            found = dict(zip(self.outputs, self.session.run(self.outputs, feeds), strict=True))
            logits.append(found["logits"])
            # the garbage comes anew before every call
            before, held, used = (
                [found[name] for name in self.outputs if "present" in name],
                self.empty(fill),
                used + new,
            )
        return np.concatenate(logits, 1), [array[:, :, :used] for array in before]


def made(path: Path, name: str, *settings: str, **options: Any) -> Path:
    convert(name, path, ConvertOptions(settings=(*SIZES, *settings), cache="static", verify=False, **options))
    return path


def near(got: Sequence[Array], wanted: Sequence[Array]) -> bool:
    """Within the floor of the criterion; NaN never is."""
    return all(within(y, x, "operator", np.float32) for y, x in zip(got, wanted, strict=True))


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "rotation", "target"),
    [
        *in_short(
            [(*kind, target) for kind in KINDS for target in ("portable", "cpu")],
            lambda name, settings, _, target: (
                (name, settings) in (KINDS[0][:2], ("decoder-shaw-kv", ())) and target == "cpu"
            ),
        ),
        # a graph for CUDA whose operators the CPU has too
        *in_short([(*KINDS[0], "cuda"), (*KINDS[2], "cuda")], lambda *_: False),
    ],
)
def test_what_unused_slots_hold_never_matters(
    name: str, settings: tuple[str, ...], rotation: str, target: str, tmp_path: Path
) -> None:
    decoder = Decoder(made(tmp_path / "x", name, *settings, rotation=rotation, target=target))
    wrong = []
    for used, calls in CALLS:
        before = decoder.run((used,), 0.0)[1] if used else []
        logits, presents = decoder.run(calls, 0.0, before, used)
        for fill in FILLS:
            # tokens of padding too: their keys and values stand in used slots
            got, got_presents = decoder.run(calls, fill, before, used)
            if not near([got, *got_presents], [logits, *presents]):
                wrong.append((used, calls, fill))
    assert not wrong


@pytest.mark.all
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_buffer_that_nobody_cleared_is_written_in_place(target: str, tmp_path: Path) -> None:
    decoder = Decoder(made(tmp_path / "x", "decoder-rope", target=target))
    wanted = decoder.run((5, *(1,) * 26), 0.0)[0]
    names = [spec.name for spec in decoder.caches]
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in decoder.empty(np.nan)]
    used, logits = 0, []
    for new in (5, *(1,) * 26):
        binding = decoder.session.io_binding()
        for name, array in decoder.feeds(used, new).items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, buffer in zip(names, held, strict=True):
            binding.bind_ortvalue_input(name, buffer)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), buffer)
        binding.bind_output("logits")
        decoder.session.run_with_iobinding(binding)
        logits.append(next(v.numpy() for v in binding.get_outputs() if v.shape()[-1] == 61).copy())
        used += new
    assert near([np.concatenate(logits, 1)], [wanted])


# -- the proof ---------------------------------------------------------------------------------------


def static_caches(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    return [spec for spec in inputs if CAPACITY in spec.axes]


def test_the_proof_fills_unused_slots_with_everything_and_caches_by_little_and_by_much() -> None:
    of = with_kv_cache(builtin("decoder-rope", task=None, settings_given=SIZES), "static", "at-write")
    points = [point for point in grid(of.limits, of.inputs) if not point.must_be_rejected]
    for lengths in ([17], range(63, 258)):  # one with every padding, and ragged batches
        steps = [p for p in points if p.length in lengths and p.calls and p.calls[-1] == 1]
        # behind at most half of the capacity, and behind more than two thirds
        shares = {roomy(p): p.length / size_of(CAPACITY, p) for p in steps}
        assert shares[True] <= 1 / 2
        assert shares[False] > 2 / 3
        assert {unused_kind(p) for p in steps} == set(UNUSED)
    # slow ways for NaN and fast ones for the rest are reached with both
    for room in (False, True):
        steps = [p for p in points if p.calls and p.calls[-1] == 1 and p.length > 16 and roomy(p) == room]
        assert {unused_kind(p) for p in steps} >= set(UNUSED) - {"large"}
    point = next(p for p in points if unused_kind(p) == "nan")
    feeds = draw(point, of.inputs)
    assert all(np.isnan(feeds[spec.name]).all() for spec in static_caches(of.inputs))


def test_each_kind_of_garbage_is_what_its_name_says() -> None:
    values = np.random.default_rng(0).standard_normal((3, 50))
    assert np.array_equal(unused_slots(values, "values"), values)
    assert np.isnan(unused_slots(values, "nan")).all()
    assert (unused_slots(values, "large") == 1e38).all()
    assert set(np.unique(np.sign(unused_slots(values, "infinite")[np.isinf(unused_slots(values, "infinite"))]))) == {
        -1,
        1,
    }


def test_garbage_comes_back_before_every_call() -> None:
    specs = [
        InputSpec(name="input_ids", axes=["batch_size", "sequence_length"], dtype="int64", role="tokens", size=9),
        InputSpec(name="past", axes=["batch_size", 1, CAPACITY, 1], dtype="float32", role="cache"),
    ]
    outputs = [OutputSpec(name="present", axes=["batch_size", 1, CAPACITY, 1])]
    seen = []

    def run(feeds: dict[str, Array]) -> list[Array]:
        seen.append(feeds["past"][0, 0, :, 0].tolist())
        return [np.zeros_like(feeds["past"])]

    feeds = {"input_ids": np.zeros((1, 3), np.int64), "past": np.full((1, 1, 4, 1), 7, np.float32)}
    in_calls(run, feeds, SimpleNamespace(inputs=specs, outputs=outputs), (2, 1))
    assert seen == [[7, 7, 7, 7], [0, 0, 7, 7]]


def _trusting(g: Builder, probs: ir.Value, v: ir.Value, *, unused: ir.Value, product: Product, **rest: Any) -> ir.Value:
    """`used_context` as it was: a probability of zero is trusted to take a value out."""
    del rest
    return product(g.Pad(probs, g.shape([0] * 7, unused)), v)


@pytest.mark.all(but=("used_context",))
@pytest.mark.parametrize(("context", "good"), [(used_context, True), (_trusting, False)])
def test_the_proof_finds_a_graph_that_reads_unused_slots(
    context: Callable[..., ir.Value], good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "used_context", context)
    options = ConvertOptions(settings=SIZES, cache="static", lengths=(17,), threads=1)
    made = convert("decoder-rope", tmp_path / "x", options)
    assert made.good == good
    if not good:
        assert made.report is not None
        failed = {p.padding for p in made.report.points if p.verdict == "fail"}
        assert failed
