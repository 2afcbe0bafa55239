"""Several precisions of one model in a directory: manifests, files, and options for each."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import posexport
from posexport.base.options.recipe import Recipe
from posexport.base.spec import PartSpec
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest
from posexport.run.bundle.read import check_hashes, read
from posexport.run.bundle.write import seal, staged
from tests import tiny_bundle

PROOFS = ("parity.json", "parity.safetensors")
ROUNDED = np.round(tiny_bundle.TABLE, 2)


def part(file: str) -> PartSpec:
    own = tiny_bundle.MANIFEST
    inputs, outputs = ({spec.name: spec.name for spec in specs} for specs in (own.inputs, own.outputs))
    return PartSpec(file=file, inputs=own.inputs, outputs=own.outputs, input_names=inputs, output_names=outputs)


def in_precision(name: str, file: str) -> Manifest:
    recipe = Recipe(task="feature-extraction", opset=18, precision=name)
    return msgspec.structs.replace(tiny_bundle.MANIFEST, precision=name, parts=[part(file)], recipe=recipe)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """fp32, int8 (another table, its proof) and fp16; a tokenizer for all."""
    target = tmp_path / "tiny"
    with staged(target, force=False) as staging:
        (staging / "onnx").mkdir()
        onnx.save_model(tiny_bundle.tiny_model(), staging / "onnx" / "model.onnx")
        for name in ("quantized", "fp16"):
            onnx.save_model(tiny_bundle.tiny_model(ROUNDED), staging / "onnx" / f"model_{name}.onnx")
        for name in ("parity.json", "parity.int8.json", "parity.fp16.json", "tokenizer.json"):
            (staging / name).write_text("{}")
        (staging / "onnx" / "model_quantized.onnx_data").write_bytes(b"weights")
        variants = [in_precision("int8", "onnx/model_quantized.onnx"), in_precision("fp16", "onnx/model_fp16.onnx")]
        seal(staging, in_precision("fp32", "onnx/model.onnx"), variants, PROOFS)
    return target


def test_each_precision_lists_its_own_files_and_the_shared_ones(bundle: Path) -> None:
    first = read(bundle)
    assert first.variants == ["int8", "fp16"]
    assert set(first.files) == {
        *("onnx/model.onnx", "onnx/model_quantized.onnx", "onnx/model_quantized.onnx_data", "onnx/model_fp16.onnx"),
        *("parity.json", "parity.int8.json", "parity.fp16.json", "tokenizer.json"),
        *("posexport.int8.json", "posexport.fp16.json"),
    }
    variant = read(bundle, "int8")
    assert variant.precision == "int8"
    assert set(variant.files) == {
        *("onnx/model_quantized.onnx", "onnx/model_quantized.onnx_data", "parity.int8.json", "tokenizer.json"),
    }
    for precision in (None, "fp32", "int8", "fp16"):
        check_hashes(bundle, read(bundle, precision))


def test_the_precision_that_is_asked_for_runs(bundle: Path) -> None:
    inputs = {"input_ids": [[5, 2, 7]]}
    got = {p: posexport.load(bundle, precision=p).run(inputs)["last_hidden_state"] for p in (None, "fp32", "int8")}
    np.testing.assert_array_equal(got[None][0], tiny_bundle.TABLE[[5, 2, 7]])
    np.testing.assert_array_equal(got["fp32"], got[None])
    np.testing.assert_array_equal(got["int8"][0], ROUNDED[[5, 2, 7]])


def test_a_precision_that_is_not_there_and_an_altered_variant_are_named(bundle: Path) -> None:
    with pytest.raises(PosexportError, match="the bundle has no int4; it has: fp32, int8, fp16"):
        posexport.load(bundle, precision="int4")
    path = bundle / "posexport.int8.json"
    path.write_bytes(path.read_bytes().replace(b'"proven": true', b'"proven":false'))
    with pytest.raises(PosexportError, match="was altered"):
        posexport.load(bundle, precision="int8")


def test_a_bundle_of_several_precisions_is_replaced_as_a_whole(bundle: Path) -> None:
    tiny_bundle.write_bundle(bundle, force=True)
    assert {path.name for path in bundle.iterdir()} == {"model.onnx", "posexport.json"}


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        (["fp32"], {"io": "half"}, "--io needs a precision of 16 bits.*got --precision fp32"),
        (["fp16"], {"weight_only": True}, "--weight-only needs --precision int8; got --precision fp16"),
        (["int8"], {"block_size": 128}, "--block-size needs --precision int4"),
        (["int8", "fp16"], {"quantizer": "hqq"}, "--quantizer needs .*got --precision int8 --precision fp16"),
        (["int8"], {"weight_only": True, "quantizer": "gptq"}, "--quantizer gptq needs --precision int4 or int4-fp16"),
        (["int4"], {"block_size": 48}, "--block-size must be 32, 64 or 128, got 48"),
        (["int4"], {"head_bits": 2}, "--head-bits must be 4 or 8, got 2"),
        (["int8"], {"head_bits": 4}, "--head-bits needs --precision int4"),
        (["int3"], {}, r"precision must be one of fp32, fp16, .*, got 'int3'"),
        ([], {}, "no precision was named"),
    ],
)
def test_options_that_do_not_fit_are_refused(names: list[str], options: dict[str, object], sentence: str) -> None:
    with pytest.raises(PosexportError, match=sentence):
        ConvertOptions(precision=names, layout="transformers.js", **options).by_precision()  # type: ignore[arg-type]


def test_an_option_is_for_the_precisions_that_it_fits() -> None:
    several = ConvertOptions(
        precision=["fp16", "int8", "int4"], layout="transformers.js", io="half", block_size=128, keep_float=["*v_proj*"]
    )
    half, quantized, few = several.by_precision()
    assert (half.io, quantized.io, few.io) == ("half", "float32", "float32")
    assert (half.block_size, quantized.block_size, few.block_size) == (32, 32, 128)
    assert (half.keep_float, quantized.keep_float, few.keep_float) == ([], ["*v_proj*"], ["*v_proj*"])


def test_several_precisions_need_a_layout_that_names_them() -> None:
    with pytest.raises(PosexportError, match=r"--precision fp32 and int8 in one directory need --layout transformers"):
        ConvertOptions(precision=["fp32", "int8"]).by_precision()
    with pytest.raises(PosexportError, match="each precision once, got --precision int8 --precision int8"):
        ConvertOptions(precision=["int8", "int8"], layout="transformers.js").by_precision()
