"""Every export translates by the same functions as without the fix, and its own additions stay its own."""

import operator
from typing import Any

import pytest
from onnxscript._internal import ast_utils
from torch._export import utils
from torch.onnx._internal.exporter._registration import ONNXRegistry

from posexport.sources.torch_fixes.torchlib_once import with_torchlib_once

OPSET = 18


def test_the_functions_are_the_same() -> None:
    expected = ONNXRegistry.from_torchlib(opset_version=OPSET)
    with with_torchlib_once():
        registry = ONNXRegistry().from_torchlib(opset_version=OPSET)  # as PyTorch calls it
    assert registry.opset_version == expected.opset_version
    assert registry.functions.keys() == expected.functions.keys()
    for target, functions in expected.functions.items():
        known = registry.functions[target]
        assert [(one.onnx_function, one.is_complex) for one in known] == [
            (one.onnx_function, one.is_complex) for one in functions
        ]
        assert [one.signature for one in known] == [one.signature for one in functions]


def test_what_one_export_adds_no_other_has() -> None:
    with with_torchlib_once():
        first = ONNXRegistry.from_torchlib(opset_version=OPSET)
        first.register_op(operator.add, lambda x, y: x + y)
        first.register_op(operator.matmul, lambda x, y: x @ y)
        second = ONNXRegistry.from_torchlib(opset_version=OPSET)
    assert operator.matmul not in second.functions
    assert not any(one.is_custom for one in second.functions.get(operator.add, []))


def test_torch_reads_their_source_for_every_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """The day this fails, the file goes."""
    read: list[Any] = []
    source_of = ast_utils.get_src_and_ast

    def reading(function: Any) -> Any:
        read.append(function)
        return source_of(function)

    monkeypatch.setattr(ast_utils, "get_src_and_ast", reading)
    ONNXRegistry.from_torchlib(opset_version=OPSET)
    assert len(read) > 100
    read.clear()
    with with_torchlib_once():
        ONNXRegistry.from_torchlib(opset_version=OPSET)
    assert not read


def test_composite_operators_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", lambda: asked.append(None))
    expected = utils._collect_all_valid_cia_ops()
    assert len(asked) > 1
    asked.clear()
    with with_torchlib_once():
        assert utils._collect_all_valid_cia_ops() == expected
    assert len(asked) == 1
