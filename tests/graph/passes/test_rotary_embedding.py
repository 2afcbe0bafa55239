"""The operator RotaryEmbedding in a traced graph: a rotation node, as any other rotation."""

from pathlib import Path

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.base.targets.target import Target
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.passes import pipeline
from posexport.graph.passes.graph_pass import Context
from posexport.run.bundle.read import read
from tests.in_float64 import is_the_module
from tests.small import TwoLayers

V, D, H = 61, 30, 5
IDS = torch.arange(22).reshape(2, 11) % V
LENGTHS = (1, 7, 33)


class Llama(TwoLayers):
    """An encoder that rotates as Llama does: cosines [B, T, D] get an axis of heads; positions count from the mask."""

    def __init__(self) -> None:
        super().__init__(D)

    def positions(self, mask: Tensor) -> Tensor:
        return (mask.cumsum(-1) - 1).clamp(min=0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        angles = self.positions(mask)[..., None].to(q.dtype) / 10 ** torch.arange(0, 1, 2 / (D // H))
        angles = torch.cat((angles, angles), -1).to(q.dtype)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        q, k = (y * cos + torch.cat((-y[..., 3:], y[..., :3]), -1) * sin for y in (q, k))
        return F.scaled_dot_product_attention(q, k, v, mask[:, None, None].bool())


class Counted(Llama):
    """Positions 0, 1, 2 ... of every row: cosines have a batch of 1."""

    def positions(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.shape[1])[None]


@pytest.mark.all(but=("Llama-cpu",))
@pytest.mark.parametrize(
    ("model", "target"), [(model, name) for model in (Llama, Counted) for name in ("portable", "cpu")]
)
def test_it_is_a_rotation_and_right(tmp_path: Path, model: type[Llama], target: str) -> None:
    module = model().eval()
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    options = ConvertOptions(target=target, opset=23, lengths=LENGTHS, example_inputs=inputs, threads=1)
    assert convert(module, tmp_path / "b", options).good
    manifest = read(tmp_path / "b")
    assert manifest.passes["rotary-embedding"].nodes == 4
    # the operator would stop it
    assert target == "portable" or manifest.passes["unpadding"].nodes

    is_the_module(tmp_path / "b", module, V, LENGTHS)


def of_operator(**attributes: int) -> tuple[ir.Model, ir.Node]:
    """A graph of one RotaryEmbedding of heads of 6 channels; ``ids``: it reads tables by position_ids."""
    ids, dim = attributes.pop("ids", 0), attributes.get("rotary_embedding_dim", 6)
    angles: list[int | str] = [9, dim // 2] if ids else ["batch", "tokens", dim // 2]
    shapes: dict[str, list[int | str]] = {"x": ["batch", H, "tokens", 6], "cos": angles, "sin": angles}
    inputs = [
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in shapes.items()
    ]
    if ids:
        kind = ir.TensorType(ir.DataType.INT64)
        inputs.append(ir.Value(name="ids", shape=ir.Shape(["batch", "tokens"]), type=kind))
    node = ir.node("RotaryEmbedding", inputs, attributes)
    node.outputs[0].name, node.outputs[0].shape = "rotated", inputs[0].shape
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 23}, name="one")
    return ir.Model(graph, ir_version=10), node


@pytest.mark.parametrize(
    ("attributes", "spec"),
    [
        ({}, RotationSpec("half")),
        ({"interleaved": 1}, RotationSpec("interleaved")),
        ({"rotary_embedding_dim": 4, "num_heads": H}, RotationSpec("half", partial=True)),
        ({"ids": 1}, None),
    ],
)
def test_layouts_and_parts(attributes: dict[str, int], spec: RotationSpec | None) -> None:
    model, _ = of_operator(**attributes)
    results = pipeline.run(model, Context(Target()), ["recognise"])
    specs = [RotationSpec.of(node) for node in model.graph if node.op_type == "Rotation"]
    assert specs == ([] if spec is None else [spec])
    assert ("rotary-embedding" in results) is (spec is not None)
    if spec is not None and spec.partial:
        (node,) = (node for node in model.graph if node.op_type == "Rotation")
        assert list(node.attributes["parts"].as_ints()) == [2, 2, 2]
        assert node.attributes["dim"].as_int() == 4
