"""A bundle holds nothing of the machine that wrote it, and the same conversion writes the same bytes anywhere."""

import getpass
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from posexport.graph.protos import scopes
from posexport.graph.provenance import strip_provenance
from posexport.graph.queries import NOTES
from posexport.run.bundle.write import copy_without_paths

pytestmark = pytest.mark.fresh
ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[2] / "golden"
OWN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        torch.manual_seed(0)
        self.out = nn.Linear(6, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.table(ids)))


def make():
    torch.manual_seed(0)
    return Net(), {"ids": torch.arange(6).reshape(2, 3)}
"""


def convert(folder: Path, source: str, *options: str, seed: int = 0, threads: int = 1) -> Path:
    """A bundle that a process of its own writes, whose directory for everything is ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(seed),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "USER": f"user-of-{folder.name}",
    }
    command = [sys.executable, "-m", "posexport", "convert", source, "-o", "bundle", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bundle"


def secrets(folder: Path, *more: str) -> list[str]:
    """What no file may hold: paths of the run, of Python and of this checkout, and names of users."""
    found = {str(folder), folder.name, str(Path.home()), os.getcwd(), str(ROOT), sys.prefix, sys.base_prefix, *more}
    found |= {str(Path(sys.prefix).resolve()), f"user-of-{folder.name}", "/tmp/", "site-packages", '.py"'}
    name = getpass.getuser()
    return sorted(found | ({name} if len(name) > 4 else set()))


def searched(bundle: Path, words: list[str]) -> list[str]:
    """Where a word stands in any file, or in the name of one."""
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert {"model.onnx", "posexport.json"} <= {path.name for path in files}
    return [
        f"{path.relative_to(bundle)} holds {word!r}"
        for path in files
        for word in words
        if word.encode() in path.read_bytes() or word in path.relative_to(bundle).as_posix()
    ]


@pytest.mark.all
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--length", "3"), id="checked", marks=pytest.mark.all),
        pytest.param(("--no-verify", "--inline"), id="inline"),
    ],
)
def test_nothing_of_the_machine_is_in_a_checkpoint_s_bundle(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "zanzibar"
    checkpoint = folder / "quokka-private-model"
    shutil.copytree(GOLDEN / "llama-forcausallm", checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config["_name_or_path"] = str(checkpoint)
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "tokenizer_config.json").write_text(
        json.dumps({"name_or_path": str(checkpoint), "a": [{"b": "/x/y"}]})
    )
    bundle = convert(folder, str(checkpoint), *options)
    assert searched(bundle, secrets(folder, "quokka")) == []
    assert json.loads((bundle / "posexport.json").read_text())["source"]["name"] == "llama"
    kept = json.loads((bundle / "config.json").read_text())
    assert kept == {key: value for key, value in config.items() if key != "_name_or_path"}


@pytest.mark.all
def test_nothing_of_the_machine_is_in_a_python_file_s_bundle(tmp_path: Path) -> None:
    folder = tmp_path / "zanzibar"
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    bundle = convert(folder, f"{folder}/own.py:make", "--length", "3")
    words = [word for word in secrets(folder) if word != '.py"']
    assert searched(bundle, words) == []
    assert json.loads((bundle / "posexport.json").read_text())["source"]["name"] == "own.py:make"


@pytest.mark.all
@pytest.mark.parametrize("name", ["decoder-alibi", "encoder-decoder-t5"])
def test_nothing_of_the_machine_is_in_a_built_in_model_s_bundle(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "zanzibar"
    bundle = convert(folder, name, "--set", "layers=1", "--length", "3") if name == "decoder-alibi" else None
    if bundle is None:
        folder.mkdir()
        bundle = convert(folder, name, "--set", "layers=1", "--no-verify")
        (bundle / "decoder_model.onnx").rename(bundle / "model.onnx")
    assert searched(bundle, secrets(folder)) == []


def digests(bundle: Path) -> dict[str, str]:
    files = {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    manifest = json.loads(files.pop("posexport.json"))
    for key in ("created", "tools"):
        manifest.pop(key)
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} | {"manifest": json.dumps(manifest)}


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param("encoder-t5", ("--set", "layers=2"), id="t5", marks=pytest.mark.all),
        pytest.param("decoder-rope", ("--cache", "static", "--target", "cpu"), id="static", marks=pytest.mark.all),
        pytest.param("llama", (), id="checkpoint", marks=pytest.mark.all),
    ],
)
def test_the_same_bytes_anywhere(source: str, options: tuple[str, ...], tmp_path: Path) -> None:
    found = []
    for number, (seed, threads) in enumerate([(0, 1), (12345, 2)]):
        folder = tmp_path / f"machine{number}"
        named = source
        if source == "llama":
            named = str(folder / f"copy{number}")
            shutil.copytree(GOLDEN / "llama-forcausallm", named)
        found.append(digests(convert(folder, named, *options, "--no-verify", seed=seed, threads=threads)))
    assert found[0] == found[1]
    assert "model.onnx" in found[0]


@pytest.mark.all
def test_weights_in_a_file_of_their_own_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from posexport.conversion.convert import convert as here
    from posexport.conversion.options import ConvertOptions

    monkeypatch.setattr("posexport.conversion.export.save.EXTERNAL_ABOVE", 1)
    for name in ("one", "two"):  # the second in a process that has traced before
        here("encoder-t5", tmp_path / name, ConvertOptions(settings=("layers=1",), verify=False))
    assert "model.onnx.data" in digests(tmp_path / "one")
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def noted(graph: Any, place: str) -> None:
    """Notes and doc strings at everything in a graph or a function, and in the bodies of its nodes."""
    graph.doc_string = f"/secret/{place}"
    for value in [*getattr(graph, "initializer", []), *graph.value_info, *graph.metadata_props]:
        value.doc_string = "/secret/value" if hasattr(value, "doc_string") else ""
    things = [graph, *graph.node, *graph.value_info, *getattr(graph, "initializer", [])]
    things += [*graph.input, *graph.output] if isinstance(graph, onnx.GraphProto) else []
    for thing in things:
        thing.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f'File "/secret/{place}.py"')
        thing.metadata_props.add(key=NOTES[0], value="['', 'head', 'neg']")
        thing.metadata_props.add(key="posexport.x", value="y")
    for node in graph.node:
        node.doc_string = f"/secret/{place}/node"
        for attribute in node.attribute:
            attribute.doc_string = f"/secret/{place}/attribute"
            if attribute.HasField("g"):
                noted(attribute.g, f"{place}/{attribute.name}")


def test_notes_are_stripped_wherever_they_are() -> None:
    """Graph, nodes, values, initialisers, attributes, bodies of bodies, functions."""
    float_, bool_ = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
    made, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info

    def body(inside: onnx.NodeProto, name: str) -> onnx.GraphProto:
        return onnx.helper.make_graph([inside], name, [], [value(inside.output[0], float_, [2])])

    def either(depth: int) -> onnx.NodeProto:
        if depth == 0:
            return made("Neg", ["weight"], ["neg"])
        bodies = {f"{way}_branch": body(either(depth - 1), way) for way in ("then", "else")}
        return made("If", ["flag"], [f"out{depth}"], **bodies)

    weight = onnx.helper.make_tensor("weight", float_, [2], [1.0, 2.0])
    nodes = [either(2), made("F", ["out2"], ["y"], domain="d")]
    ends = [value("flag", bool_, [])], [value("y", float_, [2])]
    graph = onnx.helper.make_graph(nodes, "main", *ends, [weight], value_info=[value("out2", float_, [2])])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("d", 1)]
    function = onnx.helper.make_function("d", "F", ["x"], ["y"], [made("Abs", ["x"], ["y"], "abs")], opsets[:1])
    proto = onnx.helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    proto.doc_string = "/secret/model"
    noted(proto.graph, "main")
    noted(proto.functions[0], "function")
    model = ir.from_proto(proto)
    assert ir.to_proto(model).SerializeToString().count(b"/secret/") > 20
    strip_provenance(model)
    stripped = ir.to_proto(model)
    assert b"/secret" not in stripped.SerializeToString()
    assert scopes(stripped.graph.node[0]) == ["head"]
    assert {entry.key for entry in stripped.graph.node[0].metadata_props} == {NOTES[0], "posexport.x"}
    onnx.checker.check_model(stripped)


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/x",
        "~/models/x",
        "C:\\Users\\me",
        "C:/Users/me",
        "file:///a/b",
        "\\\\server\\share",
        "/home/somebody/.cache/a b",
    ],
)
def test_a_path_is_left_out_of_a_configuration(path: str, tmp_path: Path) -> None:
    source, copy = tmp_path / "a", tmp_path / "config.json"
    source.write_text(json.dumps({"x": path, "deep": [{"y": path, "z": 1}]}))
    copy_without_paths(source, copy)
    assert json.loads(copy.read_text()) == {"deep": [{"z": 1}]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", '{"a":   "bert-base", "b": "org/name", "c": "/no_think", "d": "{{ /a/b }}"}'),
        ("vocab.json", '{"token": "/home/me"}'),
        ("config.json", "no json"),
        ("merges.txt", "/home/me /a"),
    ],
)
def test_other_files_are_copied_byte_by_byte(name: str, content: str, tmp_path: Path) -> None:
    source, copy = tmp_path / "a", tmp_path / name
    source.write_text(content)
    copy_without_paths(source, copy)
    assert copy.read_text() == content
