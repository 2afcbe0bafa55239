"""posexport plot DIR: the learned tables, biases and rotations of checkpoints and bundles, as they are stored."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

import posexport
import posexport.study.plots.checkpoint
from posexport.base.spec import Limits
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.inspect.report.positions import Positions
from posexport.study.plots import of_graph
from posexport.study.plots.draw import drawing, plot
from posexport.study.plots.figure import compose, panel_axes
from posexport.study.plots.panels import Drawing
from tests.tolerances import agree, agree_each

GOLDEN = Path(__file__).parents[1] / "golden"
VECTORS = [
    "heat map",
    "slice of positions",
    "similarity",
    "slice of dimensions",
    "likeness by distance",
    "norms",
]
DISTANCES = ["distance vectors", "similarity", "likeness by distance", "norms"]
BIAS = ["bias by distance", "bias matrix"]
SCALED = ["wavelengths", "stretch", "decay", "rotated vector"]


def stored(checkpoint: str) -> dict:
    tensors = load_file(GOLDEN / checkpoint / "model.safetensors")
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def kinds(drawn: Drawing) -> list[str]:
    return [panel.kind for group in drawn.groups for row in group.rows for panel in row.panels]


def axes_of(drawn: Drawing) -> dict:
    """By kind; of several of a kind the first."""
    axes = panel_axes(compose(drawn.groups, drawn.title, drawn.summary))
    return dict(reversed([*zip(kinds(drawn), axes, strict=True)]))


def test_a_table_of_positions_is_the_stored_one():
    table = stored("bert-absolute")["bert.embeddings.position_embeddings.weight"]
    drawn = drawing(str(GOLDEN / "bert-absolute"))
    assert kinds(drawn) == VECTORS
    assert drawn.title == "bert-absolute: absolute (20 dimensions, 33 positions)"
    axes = axes_of(drawn)
    agree(axes["heat map"].images[0].get_array(), table, "rounded", np.float32)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    agree(axes["similarity"].images[0].get_array(), unit @ unit.T, "operator", np.float32)
    agree_each(axes["norms"].lines[0].get_ydata(), np.linalg.norm(table, axis=1), "rounded", np.float32)


def test_rows_that_no_token_uses_are_not_shown():
    table = stored("roberta-absolute")["roberta.embeddings.position_embeddings.weight"]
    shown = axes_of(drawing(str(GOLDEN / "roberta-absolute")))["heat map"].images[0].get_array()
    agree(shown, table[len(table) - len(shown) :], "rounded", np.float32)
    assert 0 < len(shown) < len(table)


def test_a_table_of_distances_is_the_stored_one_in_every_layer():
    name = "encoder.layer.{}.attention.self.distance_embedding.weight"
    tables = [stored("bert-relative_key")[name.format(layer)] for layer in (0, 1)]
    drawn = drawing(str(GOLDEN / "bert-relative_key"))
    assert kinds(drawn) == DISTANCES
    axes = axes_of(drawn)
    image = axes["distance vectors"].images[0]
    agree(image.get_array(), tables[0].T, "rounded", np.float32)
    assert image.get_extent()[:2] == [-32.5, 32.5]
    for line, table in zip(axes["norms"].lines, tables, strict=True):
        agree_each(line.get_ydata(), np.linalg.norm(table, axis=1), "rounded", np.float32)
    assert [line.get_label() for line in axes["norms"].lines] == ["layer 0", "layer 1"]


def test_biases_of_encoder_and_decoder_are_told_apart():
    drawn = drawing(str(GOLDEN / "t5-forconditionalgeneration"))
    assert kinds(drawn) == BIAS * 2
    assert [group.heading.split(",")[0] for group in drawn.groups] == ["encoder: t5", "decoder: t5"]
    name = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    axes = panel_axes(compose(drawn.groups, drawn.title, drawn.summary))
    for part, by_distance in (("encoder", axes[0]), ("decoder", axes[2])):
        table = stored("t5-forconditionalgeneration")[name.format(part)]
        for head, line in enumerate(by_distance.lines):
            at_zero = line.get_ydata()[line.get_xdata() == 0]
            agree(at_zero, table[0, head, None], "rounded", np.float32)


def test_layers_with_tables_of_their_own_have_maps_on_one_scale():
    drawn = drawing(str(GOLDEN / "umt5-encodermodel"))
    axes = panel_axes(compose(drawn.groups, drawn.title, drawn.summary))
    assert [a.get_title() for a in axes] == ["layer 0", "layer 1"]
    assert axes[0].images[0].get_clim() == axes[1].images[0].get_clim()
    assert not np.array_equal(axes[0].images[0].get_array(), axes[1].images[0].get_array())


@pytest.mark.parametrize(
    ("checkpoint", "first"),
    [
        ("bloom-forcausallm", BIAS),
        ("llama-llama3-forcausallm", SCALED),
        ("phi3-longrope-forcausallm", SCALED),
        ("deberta-v2-formaskedlm", DISTANCES),
        ("swin-model", ["bias by offset"] * 9),
        ("mpnet-formaskedlm", [*VECTORS, *BIAS]),
        ("vit-model", ["heat map", "similarity", "similarity", "dimension", "dimension"]),
    ],
)
def test_families(checkpoint, first):
    drawn = drawing(str(GOLDEN / checkpoint))
    assert kinds(drawn) == first
    assert "Random" not in " ".join(group.caption for group in drawn.groups)
    assert drawn.groups[-1].caption


def test_scaling_is_beside_the_unscaled():
    axes = axes_of(drawing(str(GOLDEN / "llama-llama3-forcausallm")))
    scaled, unscaled, original = axes["wavelengths"].lines
    agree_each(unscaled.get_ydata(), 2 * np.pi * 60.0 ** np.array([0, 0.5]), "encoding", np.float64)
    agree_each(scaled.get_ydata() / unscaled.get_ydata(), [1, 8], "encoding", np.float64)
    assert original.get_ydata()[0] == 32


def test_the_command_takes_a_directory(tmp_path: Path):
    args = ["plot", str(GOLDEN / "mpt-forcausallm"), "-o", str(tmp_path / "p.svg")]
    done = CliRunner().invoke(group, args)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'p.svg'}: {', '.join(BIAS)}\n"


@pytest.mark.parametrize(
    ("pairs", "length", "says"),
    [(["heads=3"], None, "--set is for encodings by name"), ([], 34, "--positions must be at most 33, .*got 34")],
)
def test_what_does_not_fit_a_checkpoint(tmp_path: Path, pairs, length, says):
    with pytest.raises(PosexportError, match=says):
        plot(str(GOLDEN / "bert-absolute"), pairs, tmp_path / "p.svg", length=length)
    with pytest.raises(PosexportError, match="no such directory: no/where"):
        plot("no/where", [], tmp_path / "p.svg")
    assert not list(tmp_path.iterdir())


def test_a_model_without_positions_has_no_picture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(posexport.study.plots.checkpoint, "found_in", lambda _: iter(()))
    with pytest.raises(PosexportError, match="no position encoding to show"):
        drawing(str(GOLDEN / "mpt-forcausallm"))


@pytest.mark.all  # conversions
@pytest.mark.parametrize("checkpoint", ["bert-relative_key", "mpt-forcausallm"])
def test_a_bundle_is_drawn_from_its_own_files(tmp_path: Path, checkpoint):
    args = ["convert", str(GOLDEN / checkpoint), "-o", str(tmp_path / "bundle"), "--no-verify"]
    assert CliRunner().invoke(group, args).exit_code == 0
    ours, theirs = (drawing(str(path)) for path in (tmp_path / "bundle", GOLDEN / checkpoint))
    assert kinds(ours) == kinds(theirs)
    for mine, other in zip(*(panel_axes(compose(d.groups, d.title, d.summary)) for d in (ours, theirs)), strict=True):
        for a, b in zip(mine.images, other.images, strict=True):
            assert np.array_equal(a.get_array(), b.get_array())
        for a, b in zip(mine.lines, other.lines, strict=True):
            assert np.array_equal(a.get_ydata(), b.get_ydata())


@pytest.mark.all  # a conversion
def test_a_bundle_without_its_table_says_to_name_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    args = ["convert", str(GOLDEN / "bert-relative_key"), "-o", str(tmp_path / "bundle"), "--no-verify"]
    assert CliRunner().invoke(group, args).exit_code == 0
    monkeypatch.setattr("posexport.study.plots.checkpoint._initializers", lambda _: {})
    with pytest.raises(PosexportError, match=r"does not hold the parameters of relative-key.*name the checkpoint"):
        drawing(str(tmp_path / "bundle"))


class LearnedTable(nn.Module):
    """A module of a user's, with a table of 80 positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.table = nn.Embedding(50, 24), nn.Parameter(torch.randn(80, 24))
        self.layer = nn.TransformerEncoderLayer(24, 2, 32, batch_first=True)

    def forward(self, ids):
        return self.layer(self.token(ids) + self.table[: ids.shape[1]])


def test_a_users_table_is_drawn_from_its_graph(tmp_path: Path):
    module = LearnedTable().eval()
    example = {"ids": torch.randint(0, 50, (2, 9))}
    posexport.convert(module, tmp_path / "b", example_inputs=example, verify=False)
    drawn = drawing(str(tmp_path / "b"), length=20)
    assert kinds(drawn) == ["heat map", "similarity", "likeness by distance"]
    agree(axes_of(drawn)["heat map"].images[0].get_array(), module.table[:20].detach(), "operator", np.float32)
    with pytest.raises(PosexportError, match=r"--positions must be at most 80, .*got 81"):
        drawing(str(tmp_path / "b"), length=81)


RAMP = np.arange(2 * 7 * 7, dtype=np.float64).reshape(2, 7, 7)


@pytest.mark.parametrize(
    ("positions", "panels"),
    [
        (Positions("distance", RAMP[:, 0], first=-3), ["bias by distance"]),
        (Positions("distance", np.tile(RAMP[0], (3, 1)), first=-3), ["bias by distance"]),
        (Positions("pairs", np.where(RAMP % 5, RAMP, -np.inf)), ["bias matrix", "bias matrix"]),
        (Positions("grid", RAMP), ["bias by offset", "bias by offset"]),
        (Positions("table", RAMP[0]), ["lengths"]),
        (Positions("rotation", RAMP[0] / 9), ["angles"]),
    ],
    ids=lambda value: value.kind if isinstance(value, Positions) else "",
)
def test_every_kind_of_positions_of_a_graph_has_a_picture(monkeypatch: pytest.MonkeyPatch, positions, panels):
    monkeypatch.setattr(of_graph, "positions", lambda *_: {"model.onnx": [positions]})
    drawn = of_graph.pictures(Path("b"), SimpleNamespace(limits=Limits(), source=SimpleNamespace(name="b")), None)
    assert kinds(drawn) == panels
    for axes in panel_axes(compose(drawn.groups, drawn.title, drawn.summary)):
        assert axes.get_xlabel()
        assert np.isfinite([*axes.images[0].get_clim()] if axes.images else axes.get_ylim()).all()
