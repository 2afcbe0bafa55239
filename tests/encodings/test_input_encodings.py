"""Encodings added to the input: what holds for one of them and is not in the generic tests."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from posexport.encodings.encoding import ENCODINGS, Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig
from tests.tolerances import agree

#: positions on both sides of zero, and far beyond 2**24, where float32 has no odd numbers
FAR = [-25, -24, -1, 0, 1, 23, 24, 30_000_001, 2_000_000_000]


def made(name: str, **arguments) -> Encoding:
    """The encoding in float64, with parameters of size 1."""
    torch.manual_seed(3)
    encoding = ENCODINGS[name].cls(**arguments)
    for parameter in encoding.parameters():
        nn.init.normal_(parameter)
    return encoding.double().eval()


def at(*positions: int) -> Positions:
    ids = torch.tensor([positions])
    return Positions(ids_BT=ids, slots_T=ids[0])


def vectors(encoding: Encoding, *positions: int) -> torch.Tensor:
    """The vector of each position: what is added to zeros."""
    hidden = encoding.parameters_given["hidden"]
    return encoding.embed(torch.zeros(1, len(positions), hidden, dtype=torch.float64), at(*positions))[0].detach()


class OnPositions(nn.Module):
    """An encoding asked for any positions."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, x_BTC, ids_BT):
        return self.encoding.embed(x_BTC, Positions(ids_BT=ids_BT, slots_T=ids_BT[0]))


# torch's own exporter asks its own trees in the old way (2.13)
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("circular-periodic", {"period": 24}),
        ("circular-periodic", {"period": 24, "form": "table"}),
        ("sparse", {"form": "subset", "positions": "0,23,30000001"}),
    ],
)
def test_negative_and_far_positions_in_the_graph(name, arguments):
    encoding = ENCODINGS[name].cls(hidden=6, **arguments)
    dims = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.onnx.export(
        OnPositions(encoding).eval(),
        (torch.zeros(2, 3, 6), torch.arange(3).expand(2, 3).contiguous()),
        dynamic_shapes=(dims, dims),
        dynamo=True,
        opset_version=18,
        verbose=False,
    )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = np.array([FAR])
    names = [value.name for value in session.get_inputs()]
    (got,) = session.run(None, dict(zip(names, (np.zeros((1, len(FAR), 6), np.float32), ids), strict=True)))
    agree(got[0], vectors(encoding.double(), *FAR), "encoding", np.float32)


@pytest.mark.parametrize("form", ["sine", "table"])
def test_periodic_repeats_and_circular_does_not(form):
    encoding = made("circular-periodic", hidden=6, period=24, form=form)
    here = vectors(encoding, *range(24))
    for periods in (-3, -1, 1, 10**8):
        assert torch.equal(vectors(encoding, *range(24 * periods, 24 * (periods + 1))), here)
    distinct = {tuple(row) for row in here.tolist()}
    assert len(distinct) == 24
    circular = made("circular", hidden=6, period=24.0)
    assert (vectors(circular, *range(24, 48)) - vectors(circular, *range(24))).abs().min(0).values.max() > 0.1


def test_circular_waves_end_at_the_period():
    encoding = made("circular", hidden=400, period=24.0)
    slowest = vectors(encoding, 1)[0, -2:]  # sine and cosine of almost 1 / period
    angle = float(torch.atan2(slowest[0], slowest[1]))
    assert 1 / 24 < angle < 1.02 / 24


def test_complex_turns_by_the_offset_and_keeps_lengths():
    encoding = made("complex", hidden=5)
    x_BTC = torch.randn(1, 2, 5, dtype=torch.float64)[:, :1].expand(1, 3, 5)
    planes = encoding.embed(x_BTC, at(4, 11, 18)).detach().numpy()[0]
    z_TC = planes[:, :5] + 1j * planes[:, 5:]
    agree(np.abs(z_TC), x_BTC[0].abs(), "encoding", np.float64)
    # the paper's first property: an offset is the same linear map everywhere
    agree((z_TC[2] / z_TC[1]).real, (z_TC[1] / z_TC[0]).real, "encoding", np.float64, 18)
    agree((z_TC[2] / z_TC[1]).imag, (z_TC[1] / z_TC[0]).imag, "encoding", np.float64, 18)


@pytest.mark.parametrize(
    ("arguments", "carrying"),
    [
        ({"stride": 4}, {0: 0, 4: 1, 8: 2}),
        ({"stride": 4, "first": 3}, {0: 0, 1: 1, 2: 2, 4: 3, 5: 4, 6: 5, 8: 6, 9: 7, 10: 8}),
        ({"form": "block", "stride": 4}, {p: p // 4 for p in range(11)}),
        ({"form": "subset", "positions": "7, 0,3"}, {7: 0, 0: 1, 3: 2}),
    ],
)
def test_sparse_gives_the_listed_rows_and_nothing_else(arguments, carrying):
    encoding = made("sparse", hidden=5, max_positions=11, **arguments)
    got = vectors(encoding, *range(11))
    for position in range(11):
        wanted = encoding.table[carrying[position]] if position in carrying else torch.zeros(5, dtype=torch.float64)
        assert torch.equal(got[position], wanted), position
    assert len(encoding.table) == 1 + max(carrying.values())


def test_cape_is_sinusoidal_at_continuous_positions_and_the_same_in_training():
    plain = made("sinusoidal", hidden=7)
    encoding = made("cape", hidden=7, step=0.5, centre=3.0)
    agree(vectors(encoding, 3, 5, 13), vectors(plain, 0, 1, 5), "encoding", np.float64)
    assert torch.equal(vectors(encoding.train(), 3, 5, 13), vectors(encoding.eval(), 3, 5, 13))


def test_attention_table_stays_among_its_values():
    encoding = made("attention-table", hidden=6, rows=5)
    got, table = vectors(encoding, *range(0, 5000, 7)), encoding.value_table.detach()
    assert bool((got <= table.max(0).values).all())
    assert bool((got >= table.min(0).values).all())
    assert (got.max(0).values - got.min(0).values).min() > 0.1


JOINED = ["sinusoidal", "absolute", "learned", "circular", "circular-periodic", "sparse", "attention-table", "cape"]


@pytest.mark.parametrize("name", JOINED)
def test_concat_puts_the_same_vector_beside_the_token(name):
    added, beside = (made(name, hidden=6, joined=joined) for joined in ("sum", "concat"))
    x_BTC = torch.randn(3, 4, 6, dtype=torch.float64)
    got = beside.embed(x_BTC, at(0, 1, 2, 5)).detach()
    assert got.shape == (3, 4, 12)
    assert torch.equal(got[..., :6], x_BTC)
    assert torch.equal(got[..., 6:], vectors(added, 0, 1, 2, 5).expand(3, 4, 6))
    assert (added.added_width, beside.added_width) == (0, 6)
    half = beside.half().embed(x_BTC.half(), at(0, 1, 2, 5))
    assert half.dtype == torch.float16


@pytest.mark.parametrize("embedding", [None, 6])
def test_definition_maps_joined_embeddings_to_its_width(embedding):
    config = EncoderConfig.of(hidden=20, heads=5, embedding=embedding)
    width = embedding or 20
    for name, arguments, extra in [
        ("complex", {}, width),
        ("sinusoidal", {"joined": "concat"}, width),
        ("sinusoidal", {}, 0),
        ("shaw-k", {}, None),
    ]:
        sizes = {"head_size": 4} if extra is None else {"hidden": width}
        encoder = Encoder(config, ENCODINGS[name].cls(**sizes, **arguments))
        joined = width + (extra or 0)
        assert encoder.embeddings.norm.normalized_shape == (joined,)
        project = encoder.embeddings.project
        assert (project is None) == (joined == 20)
        assert project is None or project.weight.shape == (20, joined)
        assert encoder(torch.ones(2, 3, dtype=torch.int64)).shape == (2, 3, 20)


@pytest.mark.parametrize(
    ("name", "arguments", "trained", "limit", "boundaries"),
    [
        ("circular", {}, None, None, []),
        ("circular-periodic", {"period": 7}, None, None, [7]),
        ("complex", {}, None, None, []),
        ("cape", {}, None, None, []),
        ("attention-table", {}, None, None, []),
        ("sparse", {"max_positions": 40}, 40, 40, [4, 40]),
        ("sparse", {"max_positions": 3}, 3, 3, [3]),
        ("sparse", {"form": "subset", "positions": "9,0,11,3"}, None, None, [12]),
    ],
)
def test_limits(name, arguments, trained, limit, boundaries):
    encoding = ENCODINGS[name].cls(hidden=6, **arguments)
    assert (encoding.trained_length, encoding.limit, encoding.boundaries) == (trained, limit, boundaries)
    assert not encoding.shift_invariant


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("circular", {"period": 1.0}, "period must be a finite number above 1, got 1.0"),
        ("circular", {"layout": "odd"}, "circular: layout must be interleaved or half, got 'odd'"),
        ("circular", {"joined": "product"}, "circular: joined must be sum or concat, got 'product'"),
        ("circular-periodic", {"period": 1}, "period must be a whole number from 2 on, got 1"),
        ("circular-periodic", {"period": 2.5}, "period must be a whole number from 2 on, got 2.5"),
        ("circular-periodic", {"form": "saw"}, "form must be sine or table, got 'saw'"),
        ("complex", {"hidden": 0}, "complex: hidden must be a whole number from 1 on, got 0"),
        ("sparse", {"form": "dense"}, "form must be strided, block or subset, got 'dense'"),
        ("sparse", {"stride": 2, "first": 3}, "first must be at most stride=2, got 3"),
        ("sparse", {"form": "subset", "positions": "1,,2"}, "different whole numbers like 0,1,5, got '1,,2'"),
        ("sparse", {"form": "subset", "positions": "1,01"}, "different whole numbers like 0,1,5, got '1,01'"),
        ("sparse", {"form": "subset", "positions": "-1"}, "different whole numbers like 0,1,5, got '-1'"),
        ("attention-table", {"rows": 0}, "rows must be a whole number from 1 on, got 0"),
        ("cape", {"step": 0.0}, "step must be a finite number above 0, got 0.0"),
        ("cape", {"frequency_scale": float("inf")}, "frequency_scale must be a finite number above 0, got inf"),
        ("cape", {"centre": float("nan")}, "centre must be a finite number, got nan"),
        ("absolute", {"joined": "both"}, "absolute: joined must be sum or concat, got 'both'"),
    ],
)
def test_bad_arguments_get_one_sentence(name, arguments, message):
    with pytest.raises(PosexportError, match=message):
        ENCODINGS[name].cls(**{"hidden": 6, **arguments})
