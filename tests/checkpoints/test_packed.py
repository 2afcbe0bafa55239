"""Weights of 4 bits as GPTQ, AWQ and compressed-tensors store them: the file's numbers are the graph's.

The tests pack by loops over single numbers, as the libraries' documents say; no code is shared with what reads.
"""

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch
from checkpoints import change, configure, read, refusal
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

import posexport
from posexport.errors import PosexportError
from posexport.run.bundle.read import read as read_manifest
from posexport.run.bundle.write import seal

Array = NDArray[Any]
HEADS, WIDTH, LAYERS, WORDS, GROUP = 5, 160, 2, 300, 32
#: a layer's matrices, [N, K]
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (32, WIDTH),
    "self_attn.v_proj": (32, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (224, WIDTH),
    "mlp.up_proj": (224, WIDTH),
    "mlp.down_proj": (WIDTH, 224),
}
#: parts with the same input
ORDERS = {
    part: "attention" if part[10] in "qkv" and "attn" in part else "mlp" if part[4:6] in ("ga", "up") else part
    for part in SHAPES
}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": 224,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
METHODS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "symmetric": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "strategy": "group", "group_size": GROUP}}},
        "ignore": ["lm_head"],
    },
    "channel": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "strategy": "channel", "type": "int"}}},
    },
}


def words(numbers: Array, axis: int, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """int32: eight numbers along ``axis`` each, the one at ``places[i]`` of the eight in the bits from 4 i on."""
    by_eight = np.moveaxis(numbers, axis, -1).astype(np.int64)
    by_eight = by_eight.reshape(*by_eight.shape[:-1], -1, 8)
    packed = np.zeros(by_eight.shape[:-1], np.int64)
    for bit, place in enumerate(places):
        packed |= by_eight[..., place] << (4 * bit)
    return torch.from_numpy(np.moveaxis(packed.astype(np.uint32).view(np.int32), -1, axis).copy())


class Layer:
    """A linear layer of drawn whole numbers: ``real`` [N, K] is what the libraries compute with."""

    def __init__(self, rng: np.random.Generator, n: int, k: int, method: str, order: Array | None = None) -> None:
        groups = 1 if method == "channel" else k // GROUP
        self.whole = rng.integers(0, 16, (n, k))
        self.zeros = np.full((n, groups), 8) if method in ("symmetric", "channel") else rng.integers(0, 16, (n, groups))
        self.scales = rng.uniform(0.01, 0.05, (n, groups)).astype(np.float16)
        self.groups = np.arange(k) // (k // groups) if order is None else order
        steps = self.whole - self.zeros[:, self.groups]
        self.real = steps * self.scales.astype(np.float64)[:, self.groups]

    def tensors(self, name: str, method: str) -> dict[str, Tensor]:
        scales = torch.from_numpy(self.scales)
        if method.startswith("gptq"):
            stored = self.zeros if method == "gptq_v2" else (self.zeros - 1) % 16
            return {
                f"{name}.qweight": words(self.whole.T, 0),
                f"{name}.qzeros": words(stored.T, 1),
                f"{name}.scales": scales.T.contiguous(),
                f"{name}.g_idx": torch.from_numpy(self.groups).int(),
            }
        if method == "awq":
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            return {
                f"{name}.qweight": words(self.whole.T, 1, order),
                f"{name}.qzeros": words(self.zeros.T, 1, order),
                f"{name}.scales": scales.T.contiguous(),
            }
        return {
            f"{name}.weight_packed": words(self.whole, 1),
            f"{name}.weight_scale": scales,
            f"{name}.weight_shape": torch.tensor(self.whole.shape),
        }


def save_llama(folder: Path, layer: Callable[..., Any], settings: dict[str, Any], *method: str) -> dict[str, Any]:
    """A Llama of packed layers, each as ``layer`` makes it: of a generator, its index, its part and its sizes."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    layers: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for index in range(LAYERS):
        for part, (n, k) in SHAPES.items():
            name = f"model.layers.{index}.{part}"
            layers[name] = layer(rng, index, part, n, k)
            tensors |= layers[name].tensors(name, *method)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{index}.{norm}.weight"] = torch.ones(WIDTH)
    for name in ("model.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = torch.from_numpy(rng.standard_normal((WORDS, WIDTH))).float()
    tensors["model.norm.weight"] = torch.ones(WIDTH)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": settings}))
    return layers


def write(folder: Path, method: str, *, scattered: bool = False) -> dict[str, Layer]:
    """``scattered``: groups are in activation order."""
    orders: dict[str, Array] = {}

    def layer(rng: np.random.Generator, index: int, part: str, n: int, k: int) -> Layer:
        order = None
        if scattered:  # weights with the same input have one order, as their curvature is the same
            order = orders.setdefault(f"{index}.{ORDERS[part]}", rng.permutation(np.arange(k) // GROUP))
        return Layer(rng, n, k, method, order)

    return save_llama(folder, layer, METHODS[method], method)


@pytest.mark.parametrize("method", METHODS)
def test_real_values_are_the_libraries(tmp_path: Path, method: str) -> None:
    layers = write(tmp_path / "m", method)
    source = read(tmp_path / "m")
    parameters = dict(source.module.named_parameters())
    found = {parameter.detach().numpy().tobytes() for parameter in parameters.values()}
    for name, layer in layers.items():
        assert layer.real.astype(np.float32).tobytes() in found, name
    assert source.stored_rows is not None
    assert source.stored_rows.size == (128 if method == "channel" else GROUP)
    assert any("14 weights have 4 bits in the file" in sentence for sentence in source.remarks)


def rows_of(path: Path) -> set[bytes]:
    """The channels of all MatMulNBits of a file with their zero points: whole numbers, then zeros."""
    model = onnx.load(path)
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = set()
    for node in model.graph.node:
        bits = {attribute.name: attribute.i for attribute in node.attribute}.get("bits")
        if node.op_type != "MatMulNBits" or bits != 4:
            continue
        packed = tensors[node.input[1]]
        zeros = [channel.tobytes() for channel in tensors[node.input[3]]] if len(node.input) > 3 else None
        for channel, numbers in enumerate(packed):
            middle = halves(np.full(packed.shape[1], 8))
            found.add(numbers.tobytes() + (middle if zeros is None else zeros[channel]))
    return found


def halves(numbers: Array) -> bytes:
    even = np.pad(numbers, (0, len(numbers) % 2))
    return bytes((even[0::2] | even[1::2] << 4).astype(np.uint8))


def expected(layer: Layer) -> set[bytes]:
    return {halves(whole) + halves(zeros) for whole, zeros in zip(layer.whole, layer.zeros, strict=True)}


@pytest.mark.all(but=("[awq",))
@pytest.mark.parametrize("method", ["gptq", "awq", "symmetric"])
def test_the_graph_has_the_files_bits_and_is_proven(tmp_path: Path, method: str) -> None:
    layers = write(tmp_path / "m", method)
    result = posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", lengths=[7])
    assert result.report is not None
    assert result.report.passed
    found = rows_of(tmp_path / "b" / "model.onnx")
    for name, layer in layers.items():
        assert expected(layer) <= found, name
    recipe = json.loads((tmp_path / "b" / "posexport.json").read_text())["recipe"]
    assert (recipe["quantizer"], recipe["block_size"]) == ("stored", GROUP)


@pytest.mark.all
def test_a_number_of_one_layer_fails_by_the_reduced_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LAYERS", 5)
    monkeypatch.setitem(CONFIG, "num_hidden_layers", 5)
    write(tmp_path / "m", "awq")
    options: dict[str, Any] = {"lengths": [7], "proof": "reduced"}
    posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", **options)
    model = onnx.load(tmp_path / "b" / "model.onnx")
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits" and len(node.input) > 3]
    for place in (1, 2, 3):
        changed = onnx.load(tmp_path / "b" / "model.onnx")
        name = products[len(products) // 2].input[place]
        tensor = next(tensor for tensor in changed.graph.initializer if tensor.name == name)
        array = onnx.numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[17] = array.reshape(-1)[17] ^ 1 if array.dtype == np.uint8 else array.reshape(-1)[17] * 1.01
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
        folder = tmp_path / f"changed{place}"
        shutil.copytree(tmp_path / "b", folder)
        onnx.save(changed, folder / "model.onnx")
        seal(folder, read_manifest(folder))
        report = posexport.verify(folder, against=str(tmp_path / "m"), **options)
        assert not report.passed
        assert "further from decoder.layers.2" in str(report.findings[0])


def test_a_value_one_step_off_fails(tmp_path: Path) -> None:
    write(tmp_path / "m", "awq")
    posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", verify=False)
    path = tmp_path / "b" / "model.onnx"
    model = onnx.load(path)
    product = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    packed = next(tensor for tensor in model.graph.initializer if tensor.name == product.input[1])
    changed = onnx.numpy_helper.to_array(packed).copy()
    changed[11, 2, 3] ^= 1
    packed.CopyFrom(onnx.numpy_helper.from_array(changed, packed.name))
    onnx.save(model, path)
    seal(tmp_path / "b", read_manifest(tmp_path / "b"))
    report = posexport.verify(tmp_path / "b", against=str(tmp_path / "m"), lengths=[7])
    assert not report.passed


def test_portable_graphs_keep_the_numbers_too(tmp_path: Path) -> None:
    layers = write(tmp_path / "m", "gptq")
    posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", opset=21, verify=False)
    model = onnx.load(tmp_path / "b" / "model.onnx")
    arrays = [
        onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.UINT4
    ]
    columns = {bytes(column) for array in arrays for column in array.astype(np.uint8).T if len(array) >= WIDTH}
    assert all(bytes(row.astype(np.uint8)) in columns for layer in layers.values() for row in layer.whole)


def by_blocks(layer: Layer) -> Layer:
    """The layer with its inputs in an order in which groups are consecutive, by a loop over the groups."""
    places = [k for group in range(layer.zeros.shape[1]) for k in range(len(layer.groups)) if layer.groups[k] == group]
    ordered = copy.copy(layer)
    ordered.whole = layer.whole[:, places]
    return ordered


@pytest.mark.all
def test_activation_order_keeps_the_files_bits_and_is_proven(tmp_path: Path) -> None:
    layers = write(tmp_path / "m", "gptq", scattered=True)
    found = {p.detach().numpy().tobytes() for p in read(tmp_path / "m").module.parameters()}
    assert all(layer.real.astype(np.float32).tobytes() in found for layer in layers.values())
    options: dict[str, Any] = {"precision": "int4", "target": "cpu", "lengths": [7]}
    result = posexport.convert(str(tmp_path / "m"), tmp_path / "b", **options)
    assert result.report is not None
    assert result.report.passed
    rows = rows_of(tmp_path / "b" / "model.onnx")
    assert all(expected(by_blocks(layer)) <= rows for layer in layers.values())
    assert json.loads((tmp_path / "b" / "posexport.json").read_text())["recipe"]["quantizer"] == "stored"


@pytest.mark.parametrize("wrong", ["bits4", "bits4_scale", "bits4_zero", "activation_order"])
def test_a_wrong_tensor_of_an_activation_order_fails(tmp_path: Path, wrong: str) -> None:
    write(tmp_path / "m", "gptq", scattered=True)
    posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", verify=False)
    path = tmp_path / "b" / "model.onnx"
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name.endswith(f"_{wrong}"))
    array = onnx.numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    if wrong == "activation_order":
        flat[[3, 60]] = flat[[60, 3]]
    else:
        flat[17] = flat[17] ^ 1 if array.dtype == np.uint8 else flat[17] * 1.01
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)
    seal(tmp_path / "b", read_manifest(tmp_path / "b"))
    report = posexport.verify(tmp_path / "b", against=str(tmp_path / "m"), lengths=[7])
    assert not report.passed


@pytest.mark.all
def test_portable_graphs_keep_an_activation_order_too(tmp_path: Path) -> None:
    write(tmp_path / "m", "gptq", scattered=True)
    result = posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", opset=21, lengths=[7])
    assert result.report is not None
    assert result.report.passed
    operators = [node.op_type for node in onnx.load(tmp_path / "b" / "model.onnx").graph.node]
    assert operators.count("DequantizeLinear") >= LAYERS * len(ORDERS)


def test_several_orders_of_one_input_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ORDERS", {part: part for part in SHAPES})
    write(tmp_path / "m", "gptq", scattered=True)
    with pytest.raises(PosexportError, match=r"several activation orders \(g_idx\)"):
        posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4", target="cpu", verify=False)
    assert not (tmp_path / "b").exists()


def test_groups_of_several_sizes_are_not_kept(tmp_path: Path) -> None:
    write(tmp_path / "m", "gptq")
    change(tmp_path / "m", lambda tensors: tensors["model.layers.1.mlp.up_proj.g_idx"][:1].fill_(1))
    with pytest.raises(PosexportError, match=r"groups of several sizes \(g_idx\); give --quantizer hqq"):
        posexport.convert(str(tmp_path / "m"), tmp_path / "b", precision="int4")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("gptq", {"bits": 3}, "bits is 3"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ("awq", {"version": "gemv"}, "version is 'gemv'"),
        ("awq", {"group_size": 48}, "group_size is 48"),
        ("awq", {"quant_method": "fp8"}, "quant_method = 'fp8'"),
        ("symmetric", {"format": "float-quantized"}, "format is 'float-quantized'"),
    ],
)
def test_what_is_not_read_is_named(tmp_path: Path, method: str, changes: dict[str, Any], words: str) -> None:
    write(tmp_path / "m", method)
    configure(tmp_path / "m", quantization_config=METHODS[method] | changes)
    assert words in refusal(tmp_path / "m")


def test_biases_of_zeros_are_no_part_of_the_model(tmp_path: Path) -> None:
    """AutoGPTQ gives every layer one."""
    layers = write(tmp_path / "m", "gptq")
    zeros = {f"{name}.bias": torch.zeros(len(layer.whole)) for name, layer in layers.items()}
    change(tmp_path / "m", lambda tensors: tensors.update(zeros))
    assert read(tmp_path / "m").stored_rows
    change(tmp_path / "m", lambda tensors: tensors["model.layers.1.mlp.up_proj.bias"].fill_(1))
    assert "1 tensors of the file are not used (model.layers.1.mlp.up_proj.bias)" in refusal(tmp_path / "m")


def test_groups_that_are_not_the_files(tmp_path: Path) -> None:
    write(tmp_path / "m", "awq")
    configure(tmp_path / "m", quantization_config=METHODS["awq"] | {"group_size": 128})
    assert "group_size in config.json is not the file's" in refusal(tmp_path / "m")


def test_stored_needs_such_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="has no such weights"):
        posexport.convert("decoder-rope", tmp_path / "b", precision="int4", quantizer="stored", target="cpu")
