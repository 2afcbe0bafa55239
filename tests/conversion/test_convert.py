"""The main job, whole: built-in models become proven bundles; a new encoding needs nothing but itself.

tests/matrix proves all of them.
"""

import typing
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.base.targets.target import Target
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.conversion.write import without_locals
from posexport.encodings import encoding as registry
from posexport.encodings.encoding import Encoding, register
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.graph.passes.graph_pass import Context, PassResult
from posexport.graph.passes.pipeline import PASSES
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import draw
from posexport.sources import builtin
from tests.small import by_attention, in_short, shared
from tests.tolerances import allowed

#: two layers: what a second layer shares with the first has branches of its own
TINY = ("layers=2", "hidden=60", "heads=5", "feedforward=37", "vocab=61")
FIRST = {encoding: name for name, (_, encoding) in reversed(builtin.models().items())}
#: the model that the short run proves over the whole grid
WHOLE_IN_SHORT = ("encoder-alibi",)
#: in the short run, of models whose attention is of those kinds and whose own part is unlike theirs: a sum of numbers
#: that are computed, a rotation that depends on the length, terms by a table and by a network
OTHERS = {"encoder-sinusoidal", "encoder-rope-longrope", "encoder-t5", "encoder-dynamic-bias"}
#: one for each kind of attention; of kinds of models that put no other attention together, a few (test_windowed.py has
#: the shifted windows)
KINDS = sorted(
    {
        *by_attention("encoder-"),
        *by_attention("decoder-"),
        *("encoder-decoder-rope", "audio-conformer", "vision-axial", "vision-rope-axial"),
    }
)
#: of these, the short run has terms of scores and of values, a rotation and contextual positions behind a cache, and
#: sound; test_lowering.py compares other kinds with their definitions, test_rotation_graphs.py proves images
KINDS_IN_SHORT = {
    *WHOLE_IN_SHORT,
    *("encoder-nezha", "decoder-rope", "decoder-cope", "audio-conformer"),
}


def options(*settings: str, **given: object) -> ConvertOptions:
    return ConvertOptions(settings=(*TINY, *settings), threads=1, **given)  # type: ignore[arg-type]


def known(name: str, settings: Sequence[str]) -> tuple[str, ...]:
    """Those that the model has as sizes."""
    hints = typing.get_type_hints(builtin.models()[name][0].config)
    names = {key for key, kind in hints.items() if kind in (int, int | None)} | {"max_positions"}
    return tuple(pair for pair in settings if pair.split("=")[0] in names)


def check(name: str, settings: tuple[str, ...], lengths: Sequence[int] | None, folder: Path) -> None:
    """Converted, passed, in every row and padding there is; the file is valid and answers."""
    source = builtin.builtin_source(name, task=None, settings_given=settings)
    if source.limits.proof_image_sizes or source.limits.proof_lengths:
        lengths = None
    few = lengths and [n for n in lengths if source.limits.max_length is None or n <= source.limits.max_length]
    done = convert(name, folder / "b", ConvertOptions(settings=settings, threads=1, lengths=few))
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    assert done.manifest is not None
    assert done.manifest.proven == (few is None)
    assert done.manifest.checked_lengths == (few or [])
    assert not done.report.unreached
    # more rows where a branch needs them
    assert {point.batch for point in done.report.points} >= {1, 3}
    paddings = set() if source.limits.proof_image_sizes else set(source.limits.paddings)
    if few is None or max(few) > 1:
        assert {point.padding for point in done.report.points} == {"none"} | paddings
    for graph in [name for name in done.manifest.files if name.endswith(".onnx")]:
        onnx.checker.check_model(str(folder / "b" / graph), full_check=True)
    session = posexport.load(folder / "b", threads=1)
    feeds = draw(next(p for p in grid(source.limits, source.inputs) if p.batch == 3), source.inputs)
    assert [array.shape[0] for array in session.run(feeds).values()] == [3] * len(source.outputs)


@pytest.mark.all
@pytest.mark.parametrize("name", in_short(KINDS, KINDS_IN_SHORT.__contains__))
def test_every_kind_of_attention_is_checked_on_both_sides_of_its_switches(name: str, tmp_path: Path) -> None:
    check(name, known(name, shared(name)), None if name in WHOLE_IN_SHORT else (1, 17, 129, 160), tmp_path)


@pytest.mark.all(but=("encoder-dynamic-bias", "encoder-t5"))
@pytest.mark.parametrize("name", in_short(sorted({*FIRST.values()} - set(KINDS)), OTHERS.__contains__))
def test_a_model_of_every_other_encoding_is_checked(name: str, tmp_path: Path) -> None:
    settings = [pair for pair in shared(name) if not pair.startswith("layers")]
    check(name, known(name, ("layers=1", *settings)), (1, 17), tmp_path)


def test_every_encoding_has_a_model() -> None:
    assert set(FIRST) == set(registry.ENCODINGS)


@pytest.mark.all(but=("encoder-absolute",))
@pytest.mark.parametrize(
    ("name", "given", "limit"),
    [
        ("encoder-relative-key", {"beyond": "clip"}, None),
        pytest.param("encoder-relative-key-query", {"beyond": "clip", "max_length": 70}, 70, marks=pytest.mark.all),
        ("encoder-absolute", {"beyond": "interpolate", "max_length": 90}, 90),
        pytest.param("encoder-sinusoidal", {"max_length": 31}, 31, marks=pytest.mark.all),
    ],
)
def test_beyond_the_trained_length(name: str, given: dict[str, object], limit: int | None, tmp_path: Path) -> None:
    settings = [] if name == "encoder-sinusoidal" else ["max_positions=40"]
    done = convert(name, tmp_path / "b", options(*settings, **given))
    assert done.manifest is not None
    assert done.manifest.proven
    assert done.manifest.limits.max_length == limit
    session = posexport.load(tmp_path / "b", threads=1)
    session.run({"input_ids": np.ones((1, limit or 200), np.int64)})
    if limit is not None:
        with pytest.raises(posexport.PosexportError, match=f"{limit}"):
            session.run({"input_ids": np.ones((1, limit + 1), np.int64)})


def test_a_toy_encoding_is_one_class(tmp_path: Path) -> None:
    before = set(registry.ENCODINGS)

    def oracle(x_BTC: np.ndarray, pos_BT: np.ndarray, **rest: object) -> np.ndarray:
        del rest
        return x_BTC + 0.01 * pos_BT[..., None] * np.arange(x_BTC.shape[-1])

    @register("toy-ramp", cases=[{}], source="this test", embed=oracle)
    class Ramp(Encoding):
        """Adds a hundredth of the position times the channel."""

        shift_invariant = False

        def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
            channel_C = torch.arange(x_BTC.shape[-1])
            return x_BTC + 0.01 * (positions.ids_BT[..., None] * channel_C).to(x_BTC.dtype)

    try:
        done = convert("encoder-toy-ramp", tmp_path / "b", options(lengths=(1, 17)))
        assert done.manifest is not None
        assert done.good
        assert done.manifest.encoding is not None
        assert done.manifest.encoding.name == "toy-ramp"
    finally:
        for name in set(registry.ENCODINGS) - before:
            del registry.ENCODINGS[name]


def test_a_user_s_module_converts_with_its_operators_visible(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom posexport.encodings.positions import Positions\n"
        "from posexport.encodings.shaw_kv import ShawKV\nfrom posexport.nn import attend\n\n\n"
        "class Layer(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.encoding = ShawKV(head_size=6, clip=3)\n\n"
        "    def forward(self, q, k, v):\n"
        "        at = Positions.counted(q.shape[2])\n"
        "        terms = {'scores': self.encoding.scores(q, k, at, at), 'values': self.encoding.values(at, at)}\n"
        "        return attend(q, k, v, scale=0.4, **terms)\n\n\n"
        "def make():\n"
        "    axes = ['batch_size', 5, 'sequence_length', 6]\n"
        "    x = torch.zeros(2, 5, 9, 6)\n"
        "    return Layer(), dict(q=x, k=x, v=x), dict(q=axes, k=axes, v=axes)\n"
    )
    done = convert(f"{path}:make", tmp_path / "b", ConvertOptions(threads=1, lengths=(1, 4, 5, 17, 131)))
    assert done.manifest is not None
    assert done.good
    assert {"ClippedClippedValuesAttention", "ClippedScores", "ClippedValues"} < set(done.manifest.functions)
    assert {name: spec.lowering for name, spec in done.manifest.lowerings.items()} == {
        "ClippedClippedValuesAttention": "blockwise"
    }
    expected = [
        each.name
        for each in PASSES
        if each.is_listed_idle and each.concerns(Context(Target(), traced_attention=PassResult()))
    ]
    assert [name for name in done.manifest.passes if name in expected] == expected
    assert done.manifest.passes["shared-bias"].rejected == [
        "what is added to its scores depends on queries or keys, or is the mask alone"
    ]


def test_positions_matter_in_every_built_in_model() -> None:
    """The weights that a proof is made with must let a lost position show."""
    for name in (name for name in builtin.models() if name.startswith("encoder-") and "decoder" not in name):
        module: nn.Module = builtin.builtin_source(name, task=None, settings_given=TINY).module.double()
        ids = torch.arange(1, 12)[None]
        order = torch.tensor([3, 1, 2, 0, *range(4, 11)])
        y, swapped = module(input_ids=ids)[0], module(input_ids=ids[:, order])[0]
        moved = (swapped - y[:, order]).abs().max() / y.abs().max()
        assert (moved <= allowed("model", np.float64)) if name == "encoder-nope" else (moved > 1e-3), name


class _Held:
    """Stands for a module and its graph."""


def test_a_try_that_failed_holds_no_module() -> None:
    """Its error is kept until the last try."""
    held: list[weakref.ref[_Held]] = []

    def inner() -> None:
        graph = _Held()
        held.append(weakref.ref(graph))
        raise ValueError("inner")

    def tried() -> None:
        module = _Held()
        held.append(weakref.ref(module))
        try:
            inner()
        except ValueError as err:
            raise PosexportError("outer") from err

    errors = []
    try:
        tried()
    except PosexportError as err:
        errors.append(err)
    assert all(one() is not None for one in held)
    cause = errors[0].__cause__
    assert cause is not None
    cause.__context__ = errors[0]  # a cycle, as PyTorch's tracer makes
    without_locals(errors[0])
    assert all(one() is None for one in held)
    assert str(errors[0]) == "outer"
    assert str(cause) == "inner"
