"""The recipe in a manifest: `verify --against` rebuilds exactly what `convert` was told, whatever that was."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from posexport.api import verify
from posexport.cli import group
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.run.bundle.read import read
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import recorded_options
from tests.small import in_short

GOLDEN = Path(__file__).parents[1] / "golden"
LAYER = ("--set", "layers=1")
#: every option that changes a graph, on its own
ALONE = {
    "set": ("--set", "kv_heads=1"),
    "static": ("--cache", "static"),
    "at-read": ("--rotation", "at-read"),
    "max-length": ("--max-length", "19"),
    "target": ("--target", "cpu"),
    "lowering": ("--lowering", "formula"),
    "opset": ("--opset", "24"),
    "inline": ("--inline",),
    "input": ("--input", "embeddings"),
    "outputs": ("--outputs", "hidden_states:0,1", "--outputs", "attentions:0.1"),
    "layout": ("--layout", "genai"),
}
#: those that change what is computed, or what is fed, with one another
DEFINITION = ("set", "static", "at-read", "max-length")
PAIRS = [(a, b) for i, a in enumerate(DEFINITION) for b in DEFINITION[i + 1 :]]
#: the others, which change the graph alone, with a KV cache of another kind or rotation at another time
PAIRS += [
    ("static", "target"),
    ("static", "inline"),
    ("static", "layout"),
    ("at-read", "lowering"),
    ("at-read", "opset"),
]
LENGTHS = (2, 17)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def rebuilt(tmp_path: Path, source: str, *options: str) -> None:
    """Converted with options, verified without any."""
    bundle = tmp_path / "b"
    done = run("convert", source, "-o", bundle, *options, "--no-verify", "--threads", 1)
    assert done.exit_code == 0, done.output
    check(bundle, source)


def check(target: Path, source: str) -> None:
    report = verify(target, against=source, lengths=LENGTHS, threads=1)
    assert report.passed, report.describe()
    assert {point.length for point in report.points if point.verdict == "pass"} >= set(LENGTHS)


@pytest.mark.all
def test_a_lone_file_has_its_recipe_too(tmp_path: Path) -> None:
    rebuilt(tmp_path, "decoder-rope-dynamic", *LAYER, *ALONE["static"], *ALONE["at-read"])
    check(tmp_path / "b" / "model.onnx", "decoder-rope-dynamic")


#: in the short run: each of the options that change what is computed with one more, and another layout
SHORT = (("static", "target"), ("at-read", "max-length"), ("layout",))


@pytest.mark.all(but=("static+target",))
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id="+".join(names), marks=() if names in SHORT else pytest.mark.all)
        for names in [*((name,) for name in ALONE), *PAIRS]
    ],
)
def test_verify_rebuilds_every_option_alone_and_in_pairs(names: tuple[str, ...], tmp_path: Path) -> None:
    rebuilt(tmp_path, "decoder-rope-dynamic", *LAYER, *(word for name in names for word in ALONE[name]))


@pytest.mark.all(but=("clip",))
@pytest.mark.parametrize(
    ("beyond", "more"),
    in_short(
        [
            (beyond, more)
            for beyond in ("clip", "interpolate")
            for more in ((), ("--cache", "static"), ("--target", "cpu"), ("--max-length", "60"))
        ],
        lambda beyond, more: (beyond, *more[:1]) in (("clip", "--cache"), ("interpolate",)),
    ),
)
def test_verify_rebuilds_what_happens_beyond_the_table(beyond: str, more: tuple[str, ...], tmp_path: Path) -> None:
    longest = () if beyond == "clip" or "--max-length" in more else ("--max-length", "60")
    settings = (*LAYER, "--set", "max_positions=16")  # the lengths that are checked lie on both sides
    source = "decoder-relative-key" if beyond == "clip" else "decoder-absolute"
    rebuilt(tmp_path, source, *settings, "--beyond", beyond, *longest, *more)


@pytest.mark.all
def test_verify_rebuilds_the_task(tmp_path: Path) -> None:
    golden = str(GOLDEN / "bert-absolute")
    rebuilt(tmp_path, golden, "--task", "features")
    assert read(tmp_path / "b").recipe.task == "features"


def test_what_is_said_now_goes_before_the_recipe() -> None:
    record = {"task": "features", "settings": {"layers": "1"}}
    given = LoadOptions(task="fill-mask", settings=("layers=2",))
    assert recorded_options(record, given, "encoder-rope", kind="builtin", name="encoder-rope") == given
    none = LoadOptions()
    found = recorded_options(record, none, "encoder-rope", kind="builtin", name="encoder-rope")
    assert (found.task, found.settings) == ("features", ("layers=1",))
    assert recorded_options(record, none, "encoder-t5", kind="builtin", name="encoder-rope").settings == ()
    record = {"definition": "released"}
    asked = LoadOptions(definition="paper")
    found = recorded_options(record, asked, str(GOLDEN / "gpt2-lmheadmodel"), kind="huggingface", name="gpt2")
    assert found.definition == "paper"
    record = {"task": "features"}
    assert recorded_options(record, none, "own.py:make", kind="python", name="own.py:make").task == "features"


@pytest.mark.all
def test_the_recipe_stands_in_manifest_and_graph(tmp_path: Path) -> None:
    done = run(
        *("convert", "decoder-rope", "-o", tmp_path / "b", *LAYER, "--cache", "static", "--target", "cpu"),
        *("--no-verify", "--json"),
    )
    recipe = json.loads(done.stdout)["manifest"]["recipe"]
    assert recipe == {
        "precision": "fp32",
        "io": "float32",
        "keep_float": [],
        "weight_only": False,
        "block_size": 32,
        "head_bits": 8,
        "quantizer": "rtn",
        "calibrate": None,
        "task": "text-generation",
        "settings": {"layers": "1"},
        "definition": "paper",
        "max_length": None,
        "beyond": "error",
        "cache": "static",
        "rotation": "at-write",
        "target": "cpu",
        "lowering": "auto",
        "opset": 24,
        "inline": False,
        "unpad": None,
        "layout": "bundle",
    }
    model = onnx.load(str(tmp_path / "b" / "model.onnx"))
    (stored,) = (entry.value for entry in model.metadata_props if entry.key == "posexport.recipe")
    assert json.loads(stored) == recipe


def test_a_lone_file_with_a_damaged_recipe_is_refused(tmp_path: Path) -> None:
    convert("encoder-rope", tmp_path / "b", ConvertOptions(settings=("layers=1",), verify=False))
    model = onnx.load(str(tmp_path / "b" / "model.onnx"))
    for entry in model.metadata_props:
        if entry.key == "posexport.recipe":
            entry.value = '{"cache": "endless"}'
    onnx.save(model, str(tmp_path / "lone.onnx"))
    with pytest.raises(PosexportError, match=r"posexport\.recipe in its metadata that cannot be read"):
        verify(tmp_path / "lone.onnx", against="encoder-rope")
