"""Built-in models, Python files, and what ``--beyond`` does to a source."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from posexport.errors import PosexportError
from posexport.sources import builtin
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import with_limit
from posexport.sources.source import Source
from tests.small import source
from tests.tolerances import agree

USER_FILE = '''
from dataclasses import dataclass
from functools import partial
import torch
from torch import nn
from posexport.encodings.positions import Positions
from posexport.encodings.relative_key import RelativeKey
from posexport.nn import attend

class Own(nn.Module):
    """Attention of the user's own around an encoding of posexport; answers with a dict."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(41, 12)
        self.encoding = RelativeKey(max_positions=19, head_size=4)

    def forward(self, ids, mask):
        x = self.token(ids).unflatten(-1, (3, 4)).transpose(1, 2)
        at = Positions.counted(ids.shape[1])
        bias = torch.where(mask[:, None, None, :] != 0, 0.0, torch.finfo(x.dtype).min)
        y = attend(x, x, x, scale=0.5, mask=bias, scores=self.encoding.scores(x, x, at, at))
        return {"context": y.transpose(1, 2).flatten(2), "first": y[:, :, 0].flatten(1)}

class Dense(Own):
    """The same with the operator alone in a formula of the user's."""

    def forward(self, ids, mask):
        x = self.token(ids).unflatten(-1, (3, 4)).transpose(1, 2)
        at = Positions.counted(ids.shape[1])
        scores = x @ x.mT + self.encoding.scores(x, x, at, at).dense(q=x)
        return (scores * mask[:, None, None, :]) @ x

EXAMPLE = {"ids": torch.arange(22).reshape(2, 11), "mask": torch.ones(2, 11, dtype=torch.int64)}

def own():
    return Own(), EXAMPLE

def dense():
    return Dense(), EXAMPLE, {"ids": ["batch_size", "sequence_length"]}

def alone():
    return nn.Linear(3, 3)

def broken():
    raise RuntimeError("no weights today")

def number():
    return 7

def axes():
    return Own(), EXAMPLE, {"tokens": ["batch_size"]}

short = partial(own)
'''


@pytest.fixture(scope="module")
def user_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "model.py"
    path.write_text(USER_FILE)
    return path


def test_a_file_with_named_outputs(user_file: Path) -> None:
    made = load_source(f"{user_file}:own", LoadOptions())
    assert [(o.name, o.axes) for o in made.outputs] == [
        ("context", ["batch_size", "sequence_length", 12]),
        ("first", ["batch_size", 12]),
    ]
    assert [(i.name, i.role, i.size) for i in made.inputs] == [("ids", "tokens", 41), ("mask", "mask", None)]
    assert made.encoding is not None
    assert made.encoding.name == "relative-key"
    assert (made.limits.max_length, made.limits.boundaries) == (19, [19])


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("alone", "cannot tell its inputs: give an example tensor for every argument of forward"),
        ("broken", "failed: RuntimeError: no weights today"),
        ("number", "must return a torch module"),
        ("axes", "axes name ['tokens'], which is not among the inputs ['ids', 'mask']"),
        ("missing", "has no factory 'missing'; it defines Own, Dense, own, dense, alone, broken, number, axes, short"),
    ],
)
def test_a_file_that_does_not_fit_says_why(user_file: Path, factory: str, sentence: str) -> None:
    with pytest.raises(PosexportError, match=re.escape(sentence)):
        load_source(f"{user_file}:{factory}", LoadOptions())


def test_a_file_is_run_only_with_a_factory(user_file: Path) -> None:
    with pytest.raises(PosexportError, match="names no factory"):
        load_source(str(user_file), LoadOptions())
    with pytest.raises(PosexportError, match="no such Python file"):
        load_source("nowhere.py:make", LoadOptions())


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("encoder-relativ-key", (), "did you mean encoder-relative-key?"),
        ("encoder-nope", ("hiden=8",), "no such setting; did you mean hidden? It has vocab"),
        ("encoder-nope", ("hidden=x",), "--set hidden must be a whole number, got 'x'"),
        ("encoder-nope", ("hidden=61",), "hidden must be a multiple of heads, got hidden=61, heads=5"),
        ("encoder-nope", ("layers=0",), "layers must be a whole number from 1 on, got 0"),
        ("encoder-nope", ("seed",), "--set takes KEY=VALUE, got 'seed'"),
        ("encoder-nope", ("seed=1", "seed=2"), "--set seed is given twice"),
        ("encoder-nope", ("activation=gell",), "unknown activation 'gell'"),
        ("encoder-nope", ("norm=middle",), "--set norm must be one of post, pre, none, got 'middle'"),
        ("encoder-shaw-k", ("clip=-1",), "clip"),
        ("encoder-sinusoidal", ("layout=spiral",), "interleaved, half"),
        ("encoder-absolute", ("max_positions=0",), "max_positions"),
    ],
)
def test_settings_that_do_not_fit_say_why(name: str, given: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(PosexportError, match=re.escape(sentence)):
        builtin.builtin_source(name, task=None, settings_given=given)


def test_settings_reach_the_definition() -> None:
    made = builtin.builtin_source(
        "encoder-shaw-kv",
        task="fill-mask",
        settings_given=("layers=3", "hidden=24", "heads=3", "vocab=37", "clip=5", "seed=4", "norm=pre", "types=0"),
    )
    assert made.encoding is not None
    assert made.encoding.parameters == {"head_size": 8, "clip": 5}
    assert [i.name for i in made.inputs] == ["input_ids", "attention_mask"]
    assert made.outputs[0].axes == ["batch_size", "sequence_length", 37]
    assert made.module.get_submodule("encoder.groups.2.attention_residual").pre


def test_weights_are_the_seed_s() -> None:
    first, same, other = (source("absolute", f"seed={seed}") for seed in (1, 1, 2))
    assert first.sha256 == same.sha256 != other.sha256


@pytest.mark.parametrize("task", ["features", "sentence-embedding", "fill-mask", "question-answering"])
def test_outputs_are_as_declared(task: str) -> None:
    made = source("relative-key", task=task)
    ids = torch.randint(1, 61, (3, 7))
    got = made.module(input_ids=ids, attention_mask=torch.ones_like(ids), token_type_ids=torch.zeros_like(ids))
    sizes = {"batch_size": 3, "sequence_length": 7}
    assert [tuple(y.shape) for y in got] == [
        tuple(sizes[axis] if isinstance(axis, str) else axis for axis in out.axes) for out in made.outputs
    ]


@pytest.mark.parametrize(
    ("encoding", "beyond", "longest", "sentence"),
    [
        ("absolute", "error", 24, "--max-length 24 is beyond the table of 23 positions"),
        ("absolute", "clip", None, "--beyond clip does not fit the encoding absolute"),
        ("relative-key", "interpolate", 40, "--beyond interpolate"),
        ("absolute", "interpolate", None, "needs a --max-length above the table's 23 positions, got none"),
        ("absolute", "interpolate", 23, "needs a --max-length above the table's 23 positions, got 23"),
        ("sinusoidal", "clip", None, "takes inputs of any length already"),
    ],
)
def test_beyond_that_does_not_fit_says_why(encoding: str, beyond: str, longest: int | None, sentence: str) -> None:
    with pytest.raises(PosexportError, match=re.escape(sentence)):
        with_limit(source(encoding), beyond, longest)  # type: ignore[arg-type]


def run(made: Source, length: int) -> torch.Tensor:
    ids = torch.randint(1, 61, (1, length), generator=torch.Generator().manual_seed(3))
    y: torch.Tensor = made.module.double()(input_ids=ids)[0]
    return y


def test_clip_keeps_what_the_table_holds_and_has_no_end() -> None:
    plain, clipped = source("relative-key"), with_limit(source("relative-key"), "clip", None)
    assert clipped.limits.max_length is None
    assert clipped.limits.trained_length == 23
    assert torch.equal(run(clipped, 23), run(plain, 23))
    assert run(clipped, 61).shape == (1, 61, 20)


def test_interpolation_is_linear_between_the_rows() -> None:
    plain, longer = source("absolute"), with_limit(source("absolute"), "interpolate", 45)
    assert (longer.limits.trained_length, longer.limits.max_length, longer.limits.beyond) == (
        23,
        45,
        "interpolate",
    )
    old = plain.module.get_submodule("encoder.embeddings.encoding").table.double()
    new = longer.module.get_submodule("encoder.embeddings.encoding").table.double()
    # 45 rows over 23: every second row is an old one, the others lie halfway
    agree(new[::2], old, "rounded", np.float32)
    agree(new[1::2], (old[1:] + old[:-1]) / 2, "rounded", np.float32)


def test_a_shorter_limit_is_a_guard_and_nothing_else() -> None:
    shorter = with_limit(source("sinusoidal"), "error", 9)
    assert shorter.limits.max_length == 9
    assert 9 in shorter.limits.boundaries


@pytest.mark.parametrize("beyond", ["clip", "interpolate"])
def test_a_limit_that_no_table_sets_is_named_as_such(beyond: str) -> None:
    made = load_source("tests/golden/roformer-formaskedlm", LoadOptions())
    assert made.limits.max_length is not None
    with pytest.raises(PosexportError, match="because its configuration says so"):
        with_limit(made, beyond, 2 * made.limits.max_length)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("feedforward", [0, 37])
def test_sublayers_can_be_switched_off_one_by_one(norm: str, residual: bool, feedforward: int) -> None:
    """One layer by hand, from its own parameters, in float64."""
    settings = (f"norm={norm}", f"residual={str(residual).lower()}", f"feedforward={feedforward}")
    made = builtin.builtin_source(
        "encoder-nope", task=None, settings_given=("layers=1", "hidden=20", "heads=5", "vocab=61", "types=0", *settings)
    )
    module = made.module.double()
    names = {name for name, _ in module.named_parameters()}
    assert any("_residual.norm" in name for name in names) == (norm != "none")
    assert any("feedforward" in name for name in names) == bool(feedforward)
    layer = module.get_submodule("encoder.groups.0")
    ids = torch.tensor([[3, 1, 4, 15, 9, 2]])

    def normal(x: torch.Tensor, which: str) -> torch.Tensor:
        own = layer.get_submodule(f"{which}_residual.norm")
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt() * own.weight + own.bias

    def sublayer(x: torch.Tensor, which: str, f: object) -> torch.Tensor:
        y = f(normal(x, which) if norm == "pre" else x)  # type: ignore[operator]
        y = x + y if residual else y
        return normal(y, which) if norm == "post" else y

    x = module.get_submodule("encoder.embeddings")(ids, None)[0]
    positions = module.get_submodule("encoder.embeddings").position_ids(ids)
    attention = layer.get_submodule("attention")
    x = sublayer(x, "attention", lambda y: attention(y, y, None, positions, positions))
    if feedforward:
        x = sublayer(x, "feedforward", layer.get_submodule("feedforward"))
    agree(module(input_ids=ids)[0], x, "model", np.float64)
