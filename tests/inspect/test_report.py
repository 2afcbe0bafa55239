"""``posexport report``: one page that says what is so, loads nothing, works in a browser and without PyTorch."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import posexport
from posexport.base.system.files import without_folders
from posexport.cli import group
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.inspect.audit.finding import Finding, Findings
from posexport.inspect.audit.registry import RULES
from posexport.inspect.bench.records import Document, Machine, Result, figure
from posexport.inspect.bench.records import Point as Sizes
from posexport.inspect.pages.svg import Scale
from posexport.inspect.report import speed
from posexport.inspect.report.audited import neighbourhood
from posexport.inspect.report.drawings import figures
from posexport.inspect.report.positions import LENGTH, Positions, _kind, positions
from posexport.inspect.report.proof import pictures
from posexport.proof.report.points import Point
from posexport.proof.report.report import Report
from posexport.run.bundle.read import read
from tests.inspect.audit.graphs import saved
from tests.tolerances import agree

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
TINY = ("hidden=60", "heads=5", "layers=1")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A proven decoder with a KV cache, of at most 24 tokens."""
    directory = tmp_path_factory.mktemp("report") / "learned & <b>"
    convert("decoder-learned", directory, ConvertOptions(settings=(*TINY, "max_positions=24")))
    return directory


@pytest.fixture(scope="module")
def page(bundle: Path) -> str:
    output = bundle.parent / "page.html"
    posexport.report(bundle, output)
    return output.read_text()


def unproven(source: str, directory: Path, *settings: str) -> Path:
    convert(source, directory, ConvertOptions(settings=(*TINY, *settings), verify=False))
    return directory


def point(length: int, **fields: object) -> Point:
    known = {
        "batch": 1,
        "padding": "none",
        "provider": "cpu",
        "precision": "fp32",
        "output": "y",
        "error": 1e-7,
        "baseline_error": 1e-7,
        "worst_baseline_error": 1e-7,
        "tolerance": 1e-6,
        "verdict": "pass",
    }
    return Point(**(known | {"length": length} | fields))


# the page


def test_the_page_says_what_the_bundle_is(page: str, bundle: Path) -> None:
    words = html.unescape(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))
    manifest = read(bundle)
    assert manifest.proven
    for sentence in (
        "learned & <b>",
        "Proven",
        "as exactly as PyTorch itself",
        f"{manifest.parity.rejected}",
        "sequence_length: at most 24" if manifest.limits.limited_axes == ["sequence_length"] else "at most 24",
        "int64 [batch_size, sequence_length]",
        "2 cached tensors",
        "all layers: learned",
        "Vectors of positions, 60 channels",
        "The stored sample is right here",
        "read the graphs and found nothing",
        "posexport verify learned & <b> --against decoder-learned",
    ):
        assert sentence in words, sentence
    assert "nan" not in words.lower().split()


def test_the_page_loads_nothing_and_escapes_what_it_shows(page: str) -> None:
    assert not re.findall(r"https?://|@import|<link|url\(", page)
    assert all(address.startswith("data:") for address in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert "learned &amp; &lt;b&gt;" in page
    assert "<b>&lt;" not in page.replace("&lt;b&gt;", "")
    assert page.count("<script") == 2


def test_every_comparison_is_behind_its_cell(page: str, bundle: Path) -> None:
    details = json.loads(re.search(r'id="points">(.*?)</script>', page, re.DOTALL)[1])
    buttons = re.findall(r'data-key="([^"]+)" aria-pressed="false" aria-label="([^"]+)">([^<]+)<', page)
    assert {key for key, _, _ in buttons} == set(details)
    assert all(words in label for _, label, words in buttons), "what is seen is part of the name"
    report = Report.from_json((bundle / "parity.json").read_bytes())
    assert {line[0] for lines in details.values() for line in lines} == {each.where for each in report.points}
    assert any(each.calls for each in report.points)
    assert "Through the KV cache" in page
    refused = [words for _, _, words in buttons if words == "refused"]
    assert refused
    assert 'class="refused"' in page, "the chart shades what is beyond the limit"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_a_cell_on_click_and_moves_by_keys(page: str, tmp_path: Path) -> None:
    """Errors are collected from before the first script on; what a reader does is done at the end."""
    watch = "<script>window.wrong = []; addEventListener('error', e => wrong.push(e.message))</script>"
    act = """<script>
    const cells = document.querySelectorAll(".proof")[0].querySelectorAll("button");
    const heading = () => document.querySelector("#details h3").textContent;
    cells[0].click();
    const first = heading();
    cells[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    document.activeElement.click();
    const wide = document.documentElement.scrollWidth > innerWidth;
    const count = selector => document.querySelectorAll(selector).length;
    document.body.dataset.seen = JSON.stringify({ wrong, first, then: heading(), wide,
      focused: document.activeElement.tagName, lines: count("#details tbody tr"), pressed: count("[aria-pressed=true]"),
      stops: [...cells].filter(one => one.tabIndex === 0).length });
    </script>"""
    path = tmp_path / "page.html"
    path.write_text(page.replace("<head>", f"<head>{watch}").replace("</body>", f"{act}</body>"))
    command = [
        str(CHROMIUM),
        "--headless",
        "--disable-gpu",
        "--no-sandbox",
        "--window-size=360,800",
        "--enable-logging=stderr",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seen = json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', done.stdout)[1]))
    assert seen["wrong"] == []
    assert "CONSOLE" not in done.stderr
    assert seen["first"].startswith("1, no padding: error")
    assert re.match(r"\d+, no padding: error", seen["then"])
    assert seen["then"] != seen["first"]
    assert (seen["focused"], seen["pressed"], seen["stops"], seen["wide"]) == ("BUTTON", 1, 1, False)
    assert seen["lines"] > 1


@pytest.mark.parametrize("deployed", [True, False], ids=["deployed", "bare"])
def test_without_libraries_the_page_says_what_is_missing(bundle: Path, tmp_path: Path, deployed: bool) -> None:
    """Where bundles run there is no PyTorch; with neither ONNX Runtime nor onnx_ir there is the proof alone."""
    absent = ["torch", "onnxscript", "matplotlib", "transformers", *([] if deployed else ["onnxruntime", "onnx_ir"])]
    code = (
        "import sys\n"
        f"for name in {absent}:\n"
        "    sys.modules[name] = None\n"
        "import posexport\n"
        "posexport.report(sys.argv[1], sys.argv[2])\n"
    )
    target = tmp_path / "page.html"
    subprocess.run([sys.executable, "-c", code, str(bundle), str(target)], check=True, timeout=120)
    text = target.read_text()
    assert 'id="points"' in text
    assert text.count("which is not installed") == (0 if deployed else 5)
    assert ("The stored sample is right here" in text) == deployed
    assert ("Vectors of positions" in text) == deployed


def test_the_command_says_what_it_cannot_do(bundle: Path, tmp_path: Path) -> None:
    run = CliRunner()
    output = tmp_path / "page.html"
    done = run.invoke(group, ["report", str(bundle), "-o", str(output), "--no-run", "-q"])
    assert (done.exit_code, done.output) == (0, f"{output}\n")
    assert "The model was not called" in output.read_text()
    for arguments, sentence in (
        ([str(bundle), "-o", str(output)], "already exists; give --force"),
        ([str(tmp_path), "-o", str(tmp_path / "b.html")], "is not a bundle"),
        ([str(bundle), "-o", str(tmp_path / "b.html"), "--bench", str(output)], "is not a document of posexport bench"),
        ([str(bundle), "-o", str(tmp_path / "b.html"), "--bench", "none.json"], "cannot read none.json"),
    ):
        done = run.invoke(group, ["report", *arguments])
        assert isinstance(done.exception, PosexportError)
        assert sentence in str(done.exception)
    assert not (tmp_path / "b.html").exists()


def test_remarks_are_kept_without_folders(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "bert-relative_key"
    convert(str(golden), tmp_path / "b", ConvertOptions(verify=False))
    remark = "not used: the table of absolute positions beside relative ones (1 tensor)"
    assert remark in read(tmp_path / "b").remarks
    posexport.report(tmp_path / "b", tmp_path / "page.html", run=False)
    assert f"<li>{remark}</li>" in (tmp_path / "page.html").read_text()
    for sentence, source, right in (
        ("/home/me/bert/config.json sets x, see /etc/hosts", "/home/me/bert", "config.json sets x, see hosts"),
        ("to/my bert/config.json sets x", "to/my bert/", "config.json sets x"),
        (r"C:\My files\bert\config.json sets x", r"C:\My files\bert", "config.json sets x"),
        ("8 and/or 9 of 3/4: https://a.b/c/d", "./x", "8 and/or 9 of 3/4: https://a.b/c/d"),
    ):
        assert without_folders(sentence, source) == right


# findings


def test_findings_have_their_piece_of_the_graph(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = next(node for node in ir.load(bundle / "model.onnx").graph if node.op_type == "Gather")
    finding = Finding(
        code="PX999", rule="made-up", severity="error", file="model.onnx", message="1 < 2", nodes=(gather.name,), more=3
    )
    found = Findings(path="", findings=(finding,), rules=("PX999",))
    monkeypatch.setattr("posexport.inspect.report.audited.audit", lambda _: found)
    posexport.report(bundle, tmp_path / "page.html", run=False)
    text = (tmp_path / "page.html").read_text()
    section = text[text.index('class="finding"') : text.index("</section>")]
    assert "1 &lt; 2 (3 more places)" in section
    assert "between 2 inputs" in section
    for value in gather.inputs:
        assert value.name in section, "what the node reads is named"
    assert section.count('class="arrow"') >= 3


def test_an_audit_of_any_file_is_a_page(tmp_path: Path) -> None:
    """In a browser on a phone: no error, and nothing wider than the screen."""
    path = saved(RULES["PX304"].bad, tmp_path)
    done = CliRunner().invoke(group, ["audit", str(path), "--output-format", "html"])
    assert done.exit_code == 1
    page = done.stdout
    assert "<h1>model.onnx</h1>" in page
    assert "PX304 unscaled-mask" in page
    assert page.count('class="drawing"') == page.count('class="finding"') > 0
    assert not re.search(r"(src|href)=", page)
    if CHROMIUM is None:
        return
    act = "<script>document.body.dataset.seen = document.documentElement.scrollWidth > innerWidth</script>"
    (tmp_path / "page.html").write_text(page.replace("</body>", f"{act}</body>"))
    command = [str(CHROMIUM), "--headless", "--disable-gpu", "--no-sandbox", "--window-size=360,800"]
    command += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    shown = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    assert 'data-seen="false"' in shown.stdout
    assert "CONSOLE" not in shown.stderr


def test_a_node_with_many_neighbours_is_a_small_drawing() -> None:
    inputs = [ir.val(f"x{n}", ir.DataType.FLOAT, [2, 3]) for n in range(7)]
    drawing = neighbourhood(ir.node("Concat", inputs, {"axis": 0}, name="joined"))
    assert ">4 more</text>" in drawing
    assert drawing.count("<rect") == 5
    assert "x2" in drawing
    assert "x3" not in drawing


# the proof


def test_a_cell_has_its_worst_point_and_a_failure_is_seen() -> None:
    points = [
        point(3),
        point(3, batch=2, error=4e-7),
        point(3, batch=3, output="z", error=9e-7, tolerance=1e-5),
        point(5, error=2e-6, verdict="fail"),
        point(5, padding="left", error=None, tolerance=None, verdict="skipped", note="needs too much memory"),
        point(9, output="", error=None, tolerance=None, worst_baseline_error=None, verdict="rejected"),
    ]
    shown = pictures(Report(scope="grid", provider="cpu", precision="fp32", points=points), limit=8)
    (only,) = shown.maps
    assert (only.size_name, only.paddings) == ("length", ["none", "left"])
    three, five, nine = only.rows
    assert (three.cells[0].words, three.cells[0].shade) == ("4.0e-7", "pass2"), (
        "40% of the tolerance, not the largest error"
    )
    assert three.cells[1] is None
    assert (five.cells[0].words, five.cells[0].shade) == ("2.0e-6", "fail")
    assert "200% of the tolerance, fail" in five.cells[0].label
    assert (five.cells[1].shade, nine.cells[0].words) == ("skipped", "refused")
    assert len(shown.details[three.cells[0].key]) == 3
    assert "needs too much memory" in shown.details[five.cells[1].key][0].note
    assert 'class="dot bad"' in shown.chart
    assert 'class="refused"' in shown.chart


def test_tensors_of_a_cache_are_one_line_about_the_worst() -> None:
    points = [point(3, calls=(2, 1), output=f"present.{n}.key", error=n * 1e-7) for n in range(4)]
    shown = pictures(Report(scope="grid", provider="cpu", precision="fp32", points=points))
    (lines,) = shown.details.values()
    assert [(line.output, line.error) for line in lines] == [("KV cache (4 tensors)", "3.0e-07")]


# positions, against formulas of the papers


def drawn(directory: Path) -> list[Positions]:
    (one,) = positions(directory, read(directory)).values()
    return one


def test_the_bias_is_alibis(tmp_path: Path) -> None:
    (bias,) = drawn(unproven("decoder-alibi", tmp_path / "b"))
    assert (bias.kind, bias.first) == ("distance", 1 - LENGTH)
    # five heads: four of a power of two, and the first of twice as many (Press et al. 2022, released code)
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1])
    distance = np.arange(LENGTH)
    agree(bias.values[:, LENGTH - 1 :], -slopes[:, None] * distance, "rounded", np.float32)
    assert 'c4"' in figures([bias])[0].drawings[0]


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_the_rotation_is_ropes(tmp_path: Path, target: str) -> None:
    directory = tmp_path / "b"
    options = ConvertOptions(settings=(*TINY, "base=500"), verify=False, target=target)
    convert("decoder-rope" if target == "portable" else "encoder-rope", directory, options)
    (rotation,) = drawn(directory)
    assert rotation.kind == "rotation"
    turned = np.arange(LENGTH)[:, None] * 500.0 ** (-np.arange(6) / 6)
    # a float32 angle is rounded relative to its size
    agree(np.exp(1j * rotation.values).real, np.cos(turned), "rounded", np.float32, factor=LENGTH)
    agree(np.exp(1j * rotation.values).imag, np.sin(turned), "rounded", np.float32, factor=LENGTH)
    (picture,) = figures([rotation])
    assert "pair 0: a turn in 6.28 positions" in picture.drawings[0]
    assert "pair 5: a turn in 1.12e+03 positions" in picture.drawings[0]


def test_a_bias_by_offset_is_laid_out_as_the_image() -> None:
    rows, columns = 3, 2
    offsets = [(row, column) for row in range(1 - rows, rows) for column in range(1 - columns, columns)]
    by_code = {row * (2 * columns - 1) + column: 10.0 * row + column for row, column in offsets}
    lowest = min(by_code) - 1  # of a class token, with two more behind
    values = [99.0, *(by_code[code] for code in sorted(by_code)), 98.0, 97.0]
    codes = [row * (2 * columns - 1) + column for row in range(rows) for column in range(columns)]
    numbering = {"codes": np.array([40, *codes]), "lowest": np.array([lowest])}
    (grid,) = _kind("by_distance", np.array([values]), numbering)
    right = [[10.0 * row + column for column in range(1 - columns, columns)] for row in range(1 - rows, rows)]
    assert grid.values.tolist() == [right]


def test_an_outlier_does_not_set_the_colours() -> None:
    values = np.random.default_rng(0).normal(size=(61, 384))
    plain = figures([Positions("vectors", values)])[0].caption
    values[:, 7] = 100.0
    caption = figures([Positions("vectors", values)])[0].caption
    assert "up to" not in plain
    limit, largest = map(
        float, re.findall(r"strongest colour is ([\d.]+), which a few values up to ([\d.]+)", caption)[0]
    )
    assert 2 < limit < 4
    assert largest == 100


def test_layers_with_other_tables_are_other_pictures(tmp_path: Path) -> None:
    directory = tmp_path / "b"
    convert(
        "encoder-relative-key", directory, ConvertOptions(settings=("hidden=60", "heads=5", "layers=6"), verify=False)
    )
    tables = drawn(directory)
    initializers = ir.load(directory / "model.onnx").graph.initializers
    right = [
        np.linalg.norm(v.const_value.numpy(), axis=1) for n, v in initializers.items() if n.endswith("encoding.table")
    ]
    assert len(tables) == len(right) == 6
    for table, lengths in zip(tables, right, strict=True):
        agree(table.values[0], lengths, "rounded", np.float32)
    pictured = figures(tables)
    assert len(pictured) == 4
    assert "2 more like it are not shown" in pictured[-1].caption


@pytest.mark.parametrize(
    ("low", "high", "right"),
    [
        (1, 257, [1, 4, 16, 64, 256]),
        (0.2, 2.1, [0.2, 0.5, 1, 2]),
        (1e-7, 1e-4, [1e-7, 1e-6, 1e-5, 1e-4]),
        (1e-7, 1e-1, [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
        (3.0, 3.5, [3.0, 3.5]),
    ],
)
def test_ticks_of_a_logarithm_are_few_and_round(low: float, high: float, right: list[float]) -> None:
    agree(Scale(low, high, log=True).ticks(), right, "rounded", np.float64)


def test_ticks_of_whole_numbers_are_whole() -> None:
    assert Scale(2.5, -0.5, whole=True).ticks() == [0, 1, 2]
    assert Scale(2.5, -0.5).ticks() == [-0.5, 0, 0.5, 1, 1.5, 2, 2.5]


# speed


def test_a_benchmark_is_a_chart_and_a_table(tmp_path: Path) -> None:
    def result(new: int) -> Result:
        slow = figure("out/b", [[2.0 * new]], by_posexport=True, above=3_000_000)
        return Result(
            model="m",
            point=Sizes(new=new),
            baseline="a",
            valid=True,
            reason=None,
            figures=[figure("a", [[1.0 * new]], by_posexport=True, above=new * 1000), slow],
        )

    machine = Machine(cpu="some CPU", cores=2, memory=None, system="", load=None)
    document = Document(
        suite="models", threads=1, provider="cpu", rounds=1, machine=machine, commit=None,
        created="2026-11-27T00:00:00", seconds=1.0, versions={}, results=[result(16), result(64)],
    )  # fmt: skip
    path = tmp_path / "bench.json"
    path.write_bytes(document.to_json())
    shown = speed.speed(speed.read(path))
    assert shown.where == "some CPU, 1 thread, cpu, 2026-11-27"
    assert shown.candidates == ["a", "b"]
    assert shown.rows[3] == ["length 64", "b", "128", "", "3.0", ""]
    assert len(shown.charts) == 2
    assert "b: 128 at 64" in shown.charts[0]
