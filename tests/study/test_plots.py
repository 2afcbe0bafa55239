"""posexport plot: which pictures an encoding gets, that they show its numbers, and how they are written."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from posexport.cli import group
from posexport.encodings.encoding import ENCODINGS
from posexport.errors import PosexportError
from posexport.sources.encoding_alone import alone
from posexport.study.plots.choose import choose
from posexport.study.plots.draw import plot
from posexport.study.plots.figure import compose, panel_axes, render
from posexport.study.plots.panels import UNORDERED, Subject, scale
from posexport.study.plots.table_rows import table_rows
from tests.small import in_short
from tests.tolerances import agree, agree_each, allowed

#: one of every kind of picture, drawn in the short run
DRAWN = (
    "absolute",
    "sinusoidal",
    "complex",
    "rope",
    "rope-yarn",
    "alibi",
    "t5",
    "relative-key",
    "deberta",
    "swin",
    "cope",
)

VECTORS = ["heat map", "slice of positions", "similarity", "slice of dimensions"]
LEARNED = [*VECTORS, "likeness by distance", "norms"]
SHIFT = ["shift matrix", "shift residual"]
TABLE = ["distance matrix", "table rows"]
BIAS, TERM = ["bias by distance", "bias matrix"], ["term by distance", "term matrix"]
DECAY = ["wavelengths", "angles", "decay", "rotated vector"]
OFFSET = "bias by offset"


def subject(name: str, *pairs: str, length: int = 23) -> Subject:
    return Subject(alone(name, pairs), length)


def figure_of(subject: Subject):
    return compose(choose(subject), subject.alone.entry.name, "what it does")


def kinds_of(subject: Subject) -> list[str]:
    return [panel.kind for group in choose(subject) for row in group.rows for panel in row.panels]


def drawn(name: str, *pairs: str, length: int = 23) -> dict:
    """Axes by the kind of their panel; of several of a kind the first."""
    shown = subject(name, *pairs, length=length)
    return dict(reversed([*zip(kinds_of(shown), panel_axes(figure_of(shown)), strict=True)]))


@pytest.mark.parametrize(
    "name", in_short([name for name, entry in ENCODINGS.items() if entry.oracles], DRAWN.__contains__)
)
def test_every_encoding_has_a_picture_with_readable_axes(name):
    axes_of = drawn(name)
    hooks = set(ENCODINGS[name].oracles)
    wanted = {"embed": VECTORS[0], "rotate": "decay"}
    assert {kind for hook, kind in wanted.items() if hook in hooks} == set(axes_of) & set(wanted.values())
    if "scores" in hooks:
        assert ({BIAS[0], TERM[0]} if ENCODINGS[name].cls.axes == 1 else {OFFSET}) & set(axes_of)
    said = [group.caption for group in choose(subject(name))]
    assert all(0 < len(line) <= 145 and "\n" not in line for line in said)
    for axes in axes_of.values():
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        shown = [line.get_ydata() for line in axes.lines] + [image.get_array() for image in axes.images]
        assert shown
        assert all(np.isfinite(np.asarray(values, dtype=np.float64)).all() for values in shown)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("sinusoidal", VECTORS + SHIFT),
        ("absolute", LEARNED),
        ("relative-key", TABLE + TERM),
        ("nezha", TABLE + TERM),
        ("t5", TABLE + BIAS),
        ("alibi", BIAS),
        ("transformer-xl", TERM),
        ("rope", DECAY),
    ],
)
def test_what_fits(name, kinds):
    assert kinds_of(subject(name)) == kinds


def test_heat_map_and_slices_are_the_vectors():
    axes_of = drawn("sinusoidal", "hidden=12", length=20)
    p, c = np.arange(20)[:, None], np.arange(12)
    angle = p / 10000 ** ((c - c % 2) / 12)
    want = np.where(c % 2, np.cos(angle), np.sin(angle))
    agree(axes_of["heat map"].images[0].get_array(), want, "encoding", np.float64)
    lines = axes_of["slice of positions"].lines
    assert len(lines) == 4
    for line in lines:  # sines and cosines are two curves
        position, function = line.get_label().removeprefix("position ").split(",\n")
        channels = np.asarray(line.get_xdata())
        assert list(channels) == list(range(function == "cosine", 12, 2))
        agree(line.get_ydata(), want[int(position), channels], "encoding", np.float64)
    for line in axes_of["slice of dimensions"].lines:
        channel = int(line.get_label().removeprefix("dimension "))
        agree(line.get_ydata(), want[:, channel], "encoding", np.float64, 20)


def test_joined_and_multiplied_vectors_are_shown_without_the_token():
    plain = drawn("sinusoidal", "hidden=12")["heat map"].images[0].get_array()
    joined = drawn("sinusoidal", "hidden=12", "joined=concat")["heat map"]
    assert np.array_equal(joined.images[0].get_array(), plain)
    assert "put beside" in joined.get_title()
    planes = drawn("complex", "hidden=12")["heat map"].images[0].get_array()
    assert planes.shape == (23, 24)
    agree(planes[:, :12] ** 2 + planes[:, 12:] ** 2, np.ones((23, 12)), "encoding", np.float64)


def test_shift_matrix_and_residual():
    axes_of = drawn("sinusoidal", "hidden=12")
    matrix = np.asarray(axes_of["shift matrix"].images[0].get_array())
    outside = np.kron(np.eye(6), np.ones((2, 2))) == 0
    assert not matrix[outside].any()
    agree(matrix @ matrix.T, np.eye(12), "encoding", np.float64)
    assert "T(5)" in axes_of["shift matrix"].get_title()
    residuals = [line.get_ydata() for line in axes_of["shift residual"].lines[:-1]]
    assert [len(values) for values in residuals] == [22, 18, 3]
    assert max(map(np.max, residuals)) <= allowed("encoding", np.float64)


@pytest.mark.parametrize(
    ("name", "pairs", "row", "count"),
    [
        ("relative-key", ["max_positions=10"], lambda i, j: i - j + 9, 19),
        ("relative-key-query", ["max_positions=128"], lambda i, j: i - j + 127, 255),
        ("shaw-k", ["clip=3"], lambda i, j: np.clip(j - i, -3, 3) + 3, 7),
        ("nezha", ["clip=4"], lambda i, j: np.clip(j - i, -4, 4) + 4, 9),
        ("t5", ["buckets=40", "max_distance=50"], lambda i, j: np.abs(i - j) + 20 * (j > i), 40),
    ],
)
def test_table_rows_of_ten_tokens(name, pairs, row, count):
    of = subject(name, *pairs)
    before = {n: p.clone() for n, p in of.alone.layer.double().named_parameters()}
    ((found_TS, rows),) = table_rows(of, 10).values()
    at = np.arange(10)
    assert np.array_equal(found_TS, row(at[:, None], at[None, :]))
    assert rows == count
    assert all((p == before[n]).all() for n, p in of.alone.layer.named_parameters()), "the tables are as they were"


def test_distances_and_rows_are_written_into_the_picture():
    axes_of = drawn("relative-key", "max_positions=10", length=10)
    for kind, corner in (("distance matrix", "\N{MINUS SIGN}9"), ("table rows", "0")):
        texts = {tuple(map(int, text.get_position())): text.get_text() for text in axes_of[kind].texts}
        assert len(texts) == 100
        assert texts[9, 0] == corner, "query 0, key 9"
    assert "= distance + 9, of 19 rows" in axes_of["table rows"].get_title()


def test_bias_lines_and_matrix_are_the_bias():
    axes_of = drawn("alibi", "heads=8")
    for head, line in enumerate(axes_of["bias by distance"].lines):
        assert line.get_label() == f"head {head}"
        agree(line.get_ydata(), -(2.0 ** -(head + 1)) * np.abs(line.get_xdata()), "encoding", np.float64)
        assert (line.get_xdata().min(), line.get_xdata().max()) == (-11, 11)
    at = np.arange(23)
    matrix = axes_of["bias matrix"].images[0].get_array()
    agree(matrix, -0.5 * np.abs(at[:, None] - at), "encoding", np.float64)
    # query minus key: in a causal form keys that come after, at negative distances, are raised
    line = drawn("alibi", "heads=8", "variant=causal")["bias by distance"].lines[0]
    agree(line.get_ydata()[line.get_xdata() == -4], [2.0], "encoding", np.float64)


def test_decay_is_the_mean_of_the_cosines():
    axes = drawn("rope", "head_size=40", length=50)["decay"]
    mean = axes.lines[0].get_ydata()
    theta = 10000.0 ** (-np.arange(0, 40, 2) / 40)
    want = np.cos(np.arange(50)[:, None] * theta).mean(1)
    agree(mean[0], 1, "encoding", np.float64)
    assert np.abs(mean - want).max() < 0.05, "256 vectors"


def test_three_kinds_of_file(tmp_path: Path):
    for suffix in ("png", "svg", "html"):
        done = CliRunner().invoke(
            group, ["plot", "sinusoidal", "-o", str(tmp_path / f"p.{suffix}"), "--positions", "9"]
        )
        assert done.exit_code == 0, done.output
        assert done.stdout == f"{tmp_path / f'p.{suffix}'}: {', '.join(VECTORS + SHIFT)}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.html", "p.png", "p.svg"], "and nothing half-written"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG\r\n")
    svg = (tmp_path / "p.svg").read_text()
    assert ET.fromstring(svg).tag.endswith("svg")
    page = (tmp_path / "p.html").read_text()
    assert "<svg" in page
    assert "sinusoidal: 60 dimensions" in page
    assert "Likeness that falls away from the diagonal" in page
    assert "Vaswani et al. 2017" in page
    for text in (svg, page):
        assert not [part for part in text.split('href="')[1:] if not part.startswith(("#", "data:"))]
        assert "<script" not in text


def test_the_same_picture_is_the_same_file():
    groups = choose(subject("absolute", length=5))
    first, second = (render(compose(groups, "t", "s"), ".svg", "t", "") for _ in range(2))
    assert first == second


def test_titles_are_escaped_in_the_page():
    page = render(compose(choose(subject("alibi", length=5)), "a", "b"), ".html", "a <b>", "c & d").decode()
    assert "a &lt;b&gt;</title>" in page
    assert "c &amp; d</p>" in page


@pytest.mark.parametrize(
    ("name", "target", "length", "says"),
    [
        ("sinusoidal", "p.pdf", None, "must end in .png, .svg, .html"),
        ("sinusoidal", "p", None, "must end in .png, .svg, .html"),
        ("sinusodial", "p.png", None, "did you mean sinusoidal"),
        ("nope", "p.png", None, "nope has nothing to show"),
        ("absolute", "p.png", 129, "--positions must be at most 128, the positions that absolute takes, got 129"),
        ("sinusoidal", "nowhere/p.png", None, "nowhere is not a directory"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(name, target, length, says, tmp_path):
    with pytest.raises(PosexportError, match=says):
        plot(name, [], tmp_path / target, length=length)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_needs_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "p.svg"
    target.write_text("kept")
    with pytest.raises(PosexportError, match="already exists; give --force"):
        plot("alibi", [], target)
    assert target.read_text() == "kept"
    plot("alibi", [], target, force=True)
    assert target.read_text().startswith("<?xml")

    before = target.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(PosexportError, match=r"cannot write .*No space left"):
        plot("alibi", ["heads=3"], target, force=True)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["p.svg"]


def test_short_inputs_have_pictures_too(tmp_path: Path):
    assert plot("absolute", ["max_positions=1"], tmp_path / "a.svg") == ["heat map", *VECTORS[1::2]]
    assert plot("relative-key", ["max_positions=1"], tmp_path / "b.svg") == TERM
    assert plot("sinusoidal", ["hidden=1"], tmp_path / "c.svg", length=2) == ["heat map", *VECTORS[1::2]]


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PosexportError, match=r"pip install 'posexport\[plots\]'"):
        plot("alibi", [], tmp_path / "p.png")
    assert not list(tmp_path.iterdir())


# how a picture looks


def laid_out(name: str):
    figure = figure_of(subject(name))
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("name", ["sinusoidal", "alibi", "swin", "relative-key"])
def test_axes_line_up_and_nothing_is_cut_or_covered(name):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = laid_out(name)
    renderer = FigureCanvasAgg(figure).get_renderer()
    rows: dict[float, list[float]] = {}
    for axes in panel_axes(figure):
        rows.setdefault(round(axes.get_position().y1, 6), []).append(axes.get_position().x0)
    left = [min(row) for row in rows.values()]
    agree(left, [left[0]] * len(left), "rounded", np.float64)  # every row begins at the same edge
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    width, height = figure.bbox.size
    for box in boxes:
        assert -1 <= box.x0 < box.x1 <= width + 1
        assert -1 <= box.y0 < box.y1 <= height + 1
    lines = [text for axes in figure.axes if not axes.axison for text in axes.texts]
    assert all(line.get_window_extent(renderer).x1 <= width for line in lines)
    for number, box in enumerate(boxes):
        assert not [other for other in boxes[:number] if box.padded(-1).overlaps(other)], "axes with their labels"
    for axes in panel_axes(figure):
        if (legend := axes.get_legend()) is not None:
            box = legend.get_window_extent(renderer)
            assert not [other for other in figure.axes if box.overlaps(other.get_window_extent(renderer))]


def test_slices_are_right_below_the_heat_map():
    above, below = panel_axes(laid_out("sinusoidal"))[:2]
    agree(above.get_position().intervalx, below.get_position().intervalx, "rounded", np.float64)
    assert above.get_xlim() == below.get_xlim()


def test_colour_bars_are_beside_their_axes():
    figure = laid_out("alibi")
    (matrix,) = (axes for axes in panel_axes(figure) if axes.images)
    (bar,) = matrix.child_axes
    gap = (bar.get_position().x0 - matrix.get_position().x1) * figure.get_size_inches()[0]
    assert 0 < gap < 0.2
    agree(bar.get_position().intervaly, matrix.get_position().intervaly, "rounded", np.float64)


def test_numbers_of_one_sign_have_one_hue():
    image = drawn("alibi")["bias matrix"].images[0]
    assert (image.get_cmap().name, image.get_clim()[1]) == ("Blues_r", 0)
    assert scale([np.array([1.0, 2.0])])["cmap"] == "Reds"
    assert scale([np.array([1.0]), np.array([-3.0])]) == {"cmap": "RdBu_r", "vmin": -3.0, "vmax": 3.0}


def test_heads_can_be_compared_and_offsets_are_whole():
    figure = figure_of(subject("swin"))
    maps = [axes for axes in panel_axes(figure) if axes.images]
    assert [axes.get_title() for axes in maps] == [f"head {n}" for n in range(5)]
    assert len({axes.images[0].get_clim() for axes in maps}) == 1
    assert [len(axes.child_axes) for axes in maps] == [0, 0, 0, 0, 1], "one colour bar"
    for axes in maps:
        assert axes.images[0].get_extent() == [-3.5, 3.5, 3.5, -3.5]
        assert all(tick == round(tick) for tick in [*axes.get_xticks(), *axes.get_yticks()])
    of_layer = subject("swin").alone.layer
    table = of_layer.table.detach().numpy().reshape(7, 7, 5)
    agree(maps[2].images[0].get_array(), table[..., 2], "one rounding", np.float32)


def test_colours_are_dark_enough_for_white():
    from matplotlib.colors import to_rgb

    for colour in UNORDERED:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        assert 1.05 / (np.dot(linear, [0.2126, 0.7152, 0.0722]) + 0.05) >= 3, colour


def test_titles_are_words():
    from posexport.study.plots.draw import drawing

    assert drawing("rope", []).title == "rope: 12 dimensions a head"
    assert drawing("t5", []).title == "t5: 5 heads, untrained, random weights (seed 0)"
    assert drawing("t5", ["seed=4", "bidirectional=False"]).title == (
        "t5: 5 heads, not bidirectional, untrained, random weights (seed 4)"
    )
    assert drawing("rope", ["base=500"]).title == "rope: 12 dimensions a head, base 500"


def test_scaled_wavelengths_are_beside_unscaled_ones():
    axes_of = drawn("rope-linear", "factor=4", "head_size=12")
    scaled, unscaled = axes_of["wavelengths"].lines
    assert unscaled.get_label() == "unscaled"
    agree_each(unscaled.get_ydata(), 2 * np.pi * 10000 ** (np.arange(6) / 6), "encoding", np.float64)
    agree_each(scaled.get_ydata(), 4 * unscaled.get_ydata(), "encoding", np.float64)
    agree(axes_of["stretch"].lines[0].get_ydata(), np.full(6, 4), "encoding", np.float64)
