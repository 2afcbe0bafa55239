"""Graphs of ONNX's text form with weights, and what ONNX Runtime answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import onnxruntime
from onnxruntime import GraphOptimizationLevel

from posexport.base.spec import InputSpec, OutputSpec
from posexport.base.system.machine import saturates
from posexport.graph.precision.calibration import Calibration

LEVELS = (GraphOptimizationLevel.ORT_ENABLE_ALL, GraphOptimizationLevel.ORT_DISABLE_ALL)


class Inputs(msgspec.Struct):
    """The interface of a graph that is not a source's."""

    inputs: list[InputSpec]
    outputs: list[OutputSpec] = []


def rows(channels: int) -> Inputs:
    """One input ``x`` of real numbers, [rows, ``channels``]."""
    return Inputs([InputSpec(name="x", dtype="float32", axes=["rows", channels], role="values")])


def graph(text: str, opset: int = 23, **weights: Any) -> ir.Model:
    """A model of ONNX's text form with HEAD and OPSET filled in, whose inputs named in ``weights`` are initialisers."""
    head = f'<ir_version: 10, opset_import: ["": {opset}]>'
    model = ir.from_onnx_text(text.replace("HEAD", head).replace("OPSET", str(opset)))
    for value in [value for value in model.graph.inputs if value.name in weights]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(weights[value.name], name=value.name)
        value.shape, value.type = ir.Shape(weights[value.name].shape), ir.TensorType(value.const_value.dtype)
        model.graph.register_initializer(value)
    return model


def answers(model: ir.Model, **feeds: Any) -> Iterator[list[Any]]:
    """Outputs in the default session, and with optimisations off; what the graph has no input for is left out."""
    data = ir.to_proto(model).SerializeToString()
    # without VNNI products of integers saturate but for an option, which optimising applies
    saturating = saturates() and b"MatMulInteger" in data
    for level in LEVELS[:1] * len(LEVELS) if saturating else LEVELS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.log_severity_level = 3
        if saturating:
            options.add_session_config_entry("session.x64quantprecision", "1")  # as posexport's sessions have it
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = {each.name for each in session.get_inputs()}
        yield session.run(None, {name: value for name, value in feeds.items() if name in names})


def matrices(seed: int) -> Any:
    """Draws N(0, 1) arrays, float32, of the shape that it is called with."""
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def calibration(*batches: Any) -> Calibration:
    """Each of ``batches`` is ``x`` of a graph that reads no more than that."""

    def open_graph(path: Path) -> Any:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run

    return Calibration([{"x": x} for x in batches], open_graph)
