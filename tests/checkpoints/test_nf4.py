"""Checkpoints of bitsandbytes' NF4, with and without double quantization: the file's codes are the graph's.

The tests pack by loops over single numbers; no code is shared with what reads.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch
from checkpoints import change, configure, read, refusal
from numpy.typing import NDArray
from torch import Tensor

import posexport
from posexport.errors import PosexportError
from posexport.run.bundle.read import read as read_manifest
from posexport.run.bundle.write import seal
from tests.checkpoints.test_packed import WIDTH, save_llama

Array = NDArray[Any]
SIZE, NESTED = 32, 256
CODES = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
CODES += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
CODES += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
STATE = "quant_state.bitsandbytes__nf4"


def as_tensor(state: dict[str, Any]) -> Tensor:
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


class Layer:
    """A linear layer of drawn codes: ``real`` [N, K] float32, ``packed`` its codes as the file has them."""

    def __init__(self, rng: np.random.Generator, n: int, k: int, *, double: bool) -> None:
        self.whole = rng.integers(0, 16, (n, k))
        self.whole[:, ::SIZE] = 15  # every block reaches its largest value
        flat, count = self.whole.reshape(-1), n * k // SIZE
        self.packed = np.array([flat[i] << 4 | flat[i + 1] for i in range(0, len(flat), 2)], np.uint8)
        self.state: dict[str, Any] = {"quant_type": "nf4", "blocksize": SIZE, "dtype": "float16", "shape": [n, k]}
        self.more: dict[str, Tensor] = {}
        if double:
            codes = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            nested = rng.uniform(0.01, 0.02, -(-count // NESTED)).astype(np.float32)
            numbers, offset = rng.integers(0, 256, count).astype(np.uint8), np.float32(0.05)
            scales = np.array([codes[each] * nested[i // NESTED] + offset for i, each in enumerate(numbers)])
            self.absmax = torch.from_numpy(numbers)
            self.more = {"nested_absmax": torch.from_numpy(nested), "nested_quant_map": torch.from_numpy(codes)}
            self.state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": float(offset)}
        else:
            scales = rng.uniform(0.01, 0.1, count).astype(np.float32)
            self.absmax = torch.from_numpy(scales)
        self.scales = scales.reshape(n, -1)
        self.real = np.float32(CODES)[self.whole] * np.repeat(self.scales, SIZE, axis=1)

    def tensors(self, name: str) -> dict[str, Tensor]:
        stored = {"absmax": self.absmax, "quant_map": torch.tensor(CODES), STATE: as_tensor(self.state), **self.more}
        packed = torch.from_numpy(self.packed)[:, None]
        return {f"{name}.weight": packed} | {f"{name}.weight.{end}": tensor for end, tensor in stored.items()}


def write(folder: Path, *, double: bool) -> dict[str, Layer]:
    """A Llama of packed layers."""
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    settings |= {"bnb_4bit_use_double_quant": double, "bnb_4bit_quant_storage": "uint8"}
    return save_llama(folder, lambda rng, _index, _part, n, k: Layer(rng, n, k, double=double), settings)


@pytest.mark.parametrize("double", [False, True])
def test_real_values_are_the_librarys(tmp_path: Path, double: bool) -> None:
    layers = write(tmp_path / "m", double=double)
    source = read(tmp_path / "m")
    found = {parameter.detach().numpy().tobytes() for parameter in source.module.parameters()}
    assert all(layer.real.tobytes() in found for layer in layers.values())
    assert source.stored_rows is not None
    assert source.stored_rows.size == SIZE


def rows_of(path: Path) -> set[bytes]:
    """The channels of all MatMulBnb4 of a file: bytes of codes, then scales."""
    model = onnx.load(path)
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = set()
    for node in model.graph.node:
        if node.op_type == "MatMulBnb4":
            n = next(attribute.i for attribute in node.attribute if attribute.name == "N")
            packed, scales = (tensors[name].reshape(n, -1) for name in node.input[1:3])
            found |= {one.tobytes() + other.tobytes() for one, other in zip(packed, scales, strict=True)}
    return found


@pytest.mark.all
def test_the_graph_has_the_files_codes_and_is_proven(tmp_path: Path) -> None:
    layers = write(tmp_path / "m", double=True)
    result = posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", lengths=[7])
    assert result.report is not None
    assert result.report.passed, result.report.describe()
    found = rows_of(tmp_path / "b" / "model.onnx")
    for name, layer in layers.items():
        packed = layer.packed.reshape(len(layer.whole), -1)
        assert all(a.tobytes() + b.tobytes() in found for a, b in zip(packed, layer.scales, strict=True)), name
    recipe = json.loads((tmp_path / "b" / "posexport.json").read_text())["recipe"]
    assert (recipe["quantizer"], recipe["block_size"]) == ("stored", SIZE)


@pytest.mark.parametrize("wrong", ["nf4", "nf4_scale", "quant_type"])
def test_a_wrong_code_or_scale_fails(tmp_path: Path, wrong: str) -> None:
    write(tmp_path / "m", double=False)
    posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", verify=False)
    path = tmp_path / "b" / "model.onnx"
    model = onnx.load(path)
    if wrong == "quant_type":
        node = next(node for node in model.graph.node if node.op_type == "MatMulBnb4")
        next(attribute for attribute in node.attribute if attribute.name == wrong).i = 0
    else:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name.endswith(f"_{wrong}"))
        array = onnx.numpy_helper.to_array(tensor).copy()
        array[17] = array[17] ^ 1 if array.dtype == np.uint8 else array[17] * 1.01
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)
    seal(tmp_path / "b", read_manifest(tmp_path / "b"))
    assert not posexport.verify(tmp_path / "b", against=str(tmp_path / "m"), lengths=[7]).passed


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"precision": "int4", "opset": 21}, "use --target cpu"),
        ({"precision": "int4-fp16", "target": "cpu"}, "no float16 kernel for MatMulBnb4; use --precision int4"),
    ],
)
def test_other_graphs_cannot_keep_them(tmp_path: Path, options: dict[str, Any], advice: str) -> None:
    write(tmp_path / "m", double=False)
    with pytest.raises(PosexportError, match=f"NF4, kept by MatMulBnb4.*{advice}.*--quantizer hqq"):
        posexport.convert(str(tmp_path / "m"), tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type is 'fp4'"),
        ({"load_in_4bit": False, "load_in_8bit": True}, "load_in_4bit is False"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    write(tmp_path / "m", double=False)
    stated = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    configure(tmp_path / "m", quantization_config=stated | settings)
    assert said in refusal(tmp_path / "m")


def test_rows_without_whole_blocks_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m", double=False)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [32, WIDTH]}
    name = f"model.layers.0.self_attn.k_proj.weight.{STATE}"
    change(tmp_path / "m", lambda tensors: tensors.update({name: as_tensor(state)}))
    assert f"NF4 with {WIDTH} inputs has blocks of 64" in refusal(tmp_path / "m")
