"""The logits of a tied head by the embeddings as they are stored, against float64 and in what is shipped."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnxruntime import InferenceSession

import posexport
from posexport.base.targets.target import Target
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.tied_head import TiedHead
from posexport.proof.full_model.records import NotComparableError
from posexport.proof.quantized.records import StoredError
from tests.full_models import pair
from tests.tolerances import agree

WORDS, CHANNELS = 13, 5


def _model() -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    graph (int64[rows, tokens] ids) => (float[rows, tokens, {WORDS}] logits, float[rows, tokens, tokens] alike,
                                        float[n, {WORDS}] flat)
    {{
        x = Gather(words, ids)
        columns = Transpose<perm = [1, 0]>(words)
        logits = MatMul(x, columns)
        matrix = Reshape(x, shape)
        flat = Gemm(matrix, columns, bias)
        turned = Transpose<perm = [0, 2, 1]>(x)
        alike = MatMul(x, turned)
    }}"""
    proto = onnx.parser.parse_model(text)
    values = np.random.default_rng(3).standard_normal((WORDS, CHANNELS)).astype(np.float32)
    bias, shape = np.arange(WORDS, dtype=np.float32), np.array([-1, CHANNELS])
    for name, array in {"words": values, "bias": bias, "shape": shape}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def test_a_product_with_a_transposed_weight_is_one_node() -> None:
    model = _model()
    assert TiedHead().apply(model, Context(Target("cpu", 18))).nodes == 2
    operators = [node.op_type for node in model.graph]
    assert operators.count("FusedMatMul") == operators.count("Gemm") == operators.count("MatMul") == 1
    weight = model.graph.initializers["words"].const_value
    assert weight is not None
    words = weight.numpy().astype(np.float64)
    ids = np.random.default_rng(4).integers(0, WORDS, (3, 7))
    logits, alike, flat = InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"ids": ids})
    agree(logits, words[ids] @ words.T, "operator", np.float32)
    agree(flat, (words[ids] @ words.T).reshape(-1, WORDS) + np.arange(WORDS), "operator", np.float32)
    agree(alike, words[ids] @ words[ids].transpose(0, 2, 1), "operator", np.float32)


@pytest.mark.parametrize(("dtype", "perm"), [("float", "0, 1"), ("int32", "1, 0")])
def test_other_products_stay(dtype: str, perm: str) -> None:
    """With a transposition that exchanges nothing, and of whole numbers, which FusedMatMul has no kernel for."""
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    graph ({dtype}[n, 3] x) => ({dtype}[n, 3] y) {{
        same = Transpose<perm = [{perm}]>(w)
        y = MatMul(x, same)
    }}"""
    proto = onnx.parser.parse_model(text)
    w = np.arange(9).reshape(3, 3).astype({"float": np.float32}.get(dtype, dtype))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    model = ir.from_proto(proto)
    assert TiedHead().apply(model, Context(Target("cpu", 18))).nodes == 0
    assert [node.op_type for node in model.graph] == ["Transpose", "MatMul"]


def test_it_is_for_runtimes_that_have_the_operator() -> None:
    assert TiedHead().refusal(Target("cpu", 23)) is None
    assert TiedHead().refusal(Target("cuda", 23)) is None
    assert "--target" in (TiedHead().refusal(Target("portable", 23)) or "")


@pytest.mark.all
@pytest.mark.parametrize(("target", "fused"), [("cpu", 1), ("portable", 0)])
def test_a_tied_decoder_as_it_ships(target: str, fused: int, tmp_path: Path) -> None:
    settings = {"layers": 2, "vocab": 300}
    done = posexport.convert("decoder-rope", tmp_path / "out", target=target, settings=settings, lengths=[5, 13])
    assert done.good
    model = onnx.load(tmp_path / "out" / "model.onnx")
    assert [node.op_type for node in model.graph.node].count("FusedMatMul") == fused


@pytest.mark.all
def test_another_head_than_the_embeddings_is_found(tmp_path: Path) -> None:
    graphs = pair("decoder-rope", tmp_path, precision="fp32", target="cpu")
    assert graphs.check().layers == 10
    wrong = tmp_path / "wrong.onnx"
    for change in ("untied", "exchanged"):
        model = onnx.load(graphs.path)
        head = next(node for node in model.graph.node if node.op_type == "FusedMatMul")
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == head.input[1])
        array = onnx.numpy_helper.to_array(tensor).copy()
        if change == "untied":  # another matrix of the same shape
            array += np.float32(1e-3)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, "other"))
            head.input[1] = "other"
        else:  # two rows, of words that the reduced model lacks
            array[[900, 1000]] = array[[1000, 900]]
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        onnx.save(model, wrong)
        with pytest.raises((StoredError, NotComparableError)):
            graphs.check(wrong)
