"""Exported models that rotate: one node a rotation, cosines computed once, the same numbers by every way."""

from collections import Counter
from itertools import product, starmap
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from posexport.base.targets.target import Target
from posexport.conversion.convert import convert
from posexport.conversion.export.build import build
from posexport.conversion.options import ConvertOptions
from posexport.graph.lowering import plan
from posexport.graph.lowering.rotation import LOWERINGS
from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.rotation import LAYOUTS, RotationSpec
from posexport.sources.builtin import builtin_source as builtin
from tests.small import recipe

SMALL = ("vocab=61", "hidden=60", "heads=5", "feedforward=24")
WAYS = {lowering.name for lowering in LOWERINGS}


def built(path: Path, name: str, *settings: str, **options: Any) -> onnx.ModelProto:
    source = builtin(name, task=None, settings_given=(*SMALL, *settings))
    build(source, path, recipe(**options))
    return onnx.load(path)


def rotations(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == DOMAIN and node.op_type.endswith("Rotation")]


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "kind", "sets"),
    [
        pytest.param("decoder-rope-yarn", (), "HalfRotation", 1, marks=pytest.mark.all),
        ("encoder-rope", (), "SharedHalfRotation", 1),
        pytest.param("decoder-rope-dynamic", ("rotary_dim=4",), "PartialHalfRotation", 1, marks=pytest.mark.all),
        # queries grow as keys shrink
        ("decoder-xpos", (), "InterleavedRotation", 2),
    ],
)
def test_one_node_a_rotation_and_one_set_of_cosines(
    name: str, settings: tuple[str, ...], kind: str, sets: int, tmp_path: Path
) -> None:
    model = built(tmp_path / "m.onnx", name, "layers=2", *settings)
    nodes = rotations(model)
    assert [node.op_type for node in nodes] == [kind] * 4
    assert len({node.input[1] for node in nodes}) == len({node.input[2] for node in nodes}) == sets
    count = Counter(node.op_type for node in model.graph.node)
    assert (count["Cos"], count["Sin"]) == (1, 1)


@pytest.mark.parametrize(
    ("made_for", "opset", "each", "shared"),
    [
        ("portable", 18, "turned", "turned"),
        ("portable", 23, "rotary", "rotary"),
        ("cpu", 18, "ms-rotary", "ms-rotary"),
        ("cpu", 23, "rotary", "ms-rotary"),
        ("cuda", 23, "rotary", "ms-rotary"),
    ],
)
def test_what_is_chosen(made_for: str, opset: int, each: str, shared: str) -> None:
    for spec in starmap(RotationSpec, product(LAYOUTS, *[(False, True)] * 3)):
        found = plan.family_of(ir.node(spec.op_type, [], spec.attributes, domain=DOMAIN))
        assert found is not None
        assert found[1] == spec
        choice = plan.choose(*found, Target(made_for, opset))
        wanted = shared if spec.shared else each
        assert choice.lowering.name == wanted
        assert set(choice.rejected) == WAYS - {wanted}
        assert all(choice.rejected.values())


PARTIAL = ("layout=interleaved", "rotary_dim=6")
#: both operators, of a decoder and of an encoder
SHORT: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("decoder-rope", ("kv_heads=1",), {"target": "cpu", "opset": 23, "rotation": "at-read"}),
    ("encoder-rope", (), {"target": "cpu", "opset": 18}),
]
LONG: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("decoder-rope", PARTIAL, {"rotation": "at-read"}),
    ("encoder-rope", PARTIAL, {"opset": 23}),
    ("decoder-rope", (), {"opset": 23}),
    ("decoder-rope", ("kv_heads=1",), {"opset": 24, "cache": "static", "rotation": "at-read"}),
    ("decoder-rope", PARTIAL, {"target": "cpu", "opset": 18}),
    ("encoder-rope-dynamic", (), {"target": "cpu", "opset": 23}),
    ("encoder-rope", PARTIAL, {"inline": True}),
]


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "settings", "options"),
    [
        *SHORT,
        *(pytest.param(*row, marks=pytest.mark.all) for row in LONG),
    ],
)
def test_proven_with_every_way(name: str, settings: tuple[str, ...], options: dict[str, Any], tmp_path: Path) -> None:
    """At lengths below and above one, both kinds of padding, with a cache: the grid of convert."""
    assert convert(
        name,
        tmp_path / "x",
        ConvertOptions(settings=(*SMALL, "layers=1", *settings), lengths=(1, 7), threads=1, **options),
    ).good


@pytest.mark.all
def test_inlined_without_operators_that_few_runtimes_know(tmp_path: Path) -> None:
    model = built(tmp_path / "flat.onnx", "encoder-rope", *PARTIAL, "layers=1", opset=23, inline=True)
    assert not model.functions
    assert not {"RotaryEmbedding", "CastLike"} & {node.op_type for node in model.graph.node}


@pytest.mark.all
def test_a_model_of_float32_runs_without_casts_around_rotations(tmp_path: Path) -> None:
    """ONNX Runtime drops casts to the type that they have."""
    built(tmp_path / "m.onnx", "decoder-rope", "layers=2")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3  # it warns that what it writes is for this machine
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimised.onnx").graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    splits = [node for node in nodes if node.op_type == "Split" and len(node.output) == 2]  # not of packed maps
    assert len(splits) == 4
    assert "Cast" not in {made_by[node.input[0]] for node in splits}
    read_by = {name: node.op_type for node in nodes for name in node.input}
    assert "Cast" not in {read_by.get(node.output[0]) for node in nodes if node.op_type == "Concat"}


@pytest.mark.all
@pytest.mark.parametrize("name", ["vision-rope-mrope", pytest.param("vision-rope-axial", marks=pytest.mark.all)])
def test_images_are_proven_with_the_operators(name: str, tmp_path: Path) -> None:
    sizes = ("layers=1", "hidden=40", "heads=5", "feedforward=24", "patch=3", "rows=4", "columns=5")
    options = ConvertOptions(settings=sizes, target="cpu", opset=23, threads=1)
    assert convert(name, tmp_path / "x", options).good
