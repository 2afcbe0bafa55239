"""Triton: a model repository for its ONNX Runtime backend, one model for each of the bundle's graphs."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from posexport.base.spec import BATCH, is_cache_output
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import MODEL
from posexport.run.bundle.read import locate
from posexport.serve.deploy.engine import Deployment, Engine
from posexport.serve.deploy.write import render
from posexport.serve.engines.fit import has_tokenizer

#: ONNX's names of element types -> Triton's
_TYPES = {
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "DOUBLE": "FP64",
    "INT64": "INT64",
    "INT32": "INT32",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}
#: the largest batch of Triton
_BATCH = 32


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """An input or output in config.pbtxt; ``dims`` without the batch if Triton adds it."""

    name: str
    type: str
    dims: list[int]


@dataclasses.dataclass(frozen=True)
class _Graph:
    """A model of the repository: one of the bundle's graphs."""

    name: str
    file: str
    weights: list[str]
    batch: int
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    left_out: list[str]
    cached: bool


def _write(deployment: Deployment, folder: Path) -> None:
    for graph in graphs(deployment):
        version = folder / "repository" / graph.name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(locate(deployment.bundle, graph.file), version / MODEL)
        for weights in graph.weights:
            shutil.copyfile(locate(deployment.bundle, weights), version / Path(weights).name)
        text = render(TRITON, "config.pbtxt.part", graph=graph, deployment=deployment)
        version.with_name("config.pbtxt").write_text(text, encoding="utf-8", newline="\n")
    if has_tokenizer(deployment.manifest):
        from posexport.run.texts import TOKENIZER

        shutil.copyfile(locate(deployment.bundle, TOKENIZER), folder / TOKENIZER)


def graphs(deployment: Deployment) -> list[_Graph]:
    """Every graph of the bundle, with its inputs and outputs as in the ONNX file."""
    files = list(dict.fromkeys(part.file for part in deployment.manifest.parts)) or [MODEL]
    return [_graph(deployment, file, alone=len(files) == 1) for file in files]


def _graph(deployment: Deployment, file: str, *, alone: bool) -> _Graph:
    import onnx

    path = locate(deployment.bundle, file)
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    values = [*inputs, *graph.output]
    batched = all(_dims(value)[:1] == [BATCH] for value in values)
    weights = sorted({entry.value for t in graph.initializer for entry in t.external_data if entry.key == "location"})
    return _Graph(
        name=deployment.name if alone else f"{deployment.name}-{Path(file).stem}",
        file=file,
        weights=[(Path(file).parent / name).as_posix() for name in weights],
        batch=_BATCH if batched else 0,
        inputs=[_tensor(value, batched=batched) for value in inputs],
        outputs=[_tensor(value, batched=batched) for value in graph.output],
        left_out=[value.name for value in graph.input if value.name in stored],
        cached=any(is_cache_output(value.name) for value in graph.output),
    )


def _dims(value: Any) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _tensor(value: Any, *, batched: bool) -> _Tensor:
    import onnx

    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    if kind not in _TYPES:
        raise PosexportError(f"{value.name} is a tensor of {kind}, which Triton has no type for; convert it to fp32")
    dims = [size if isinstance(size, int) else -1 for size in _dims(value)]
    return _Tensor(name=value.name, type=f"TYPE_{_TYPES[kind]}", dims=dims[1:] if batched else dims)


def _values(deployment: Deployment) -> dict[str, Any]:
    models = graphs(deployment)
    request = _request(deployment, models[0])
    return {
        "graphs": models,
        "request": request,
        "cached": any(graph.cached for graph in models),
        "text": has_tokenizer(deployment.manifest),
        # session options of the proof that the backend has no parameter for
        "options": deployment.manifest.session_options,
    }


def _request(deployment: Deployment, graph: _Graph) -> str:
    """A request of three tokens, JSON of the Open Inference Protocol; empty where inputs are more than tokens."""
    specs = {spec.name: spec for spec in deployment.manifest.inputs}
    roles = [specs[tensor.name].role if tensor.name in specs else "" for tensor in graph.inputs]
    if not set(roles) <= {"tokens", "mask", "types"}:
        return ""
    data = {"tokens": [5, 2, 7], "mask": [1, 1, 1], "types": [0, 0, 0]}
    inputs = [
        {"name": tensor.name, "datatype": tensor.type.removeprefix("TYPE_"), "shape": [1, 3], "data": data[role]}
        for tensor, role in zip(graph.inputs, roles, strict=True)
    ]
    return json.dumps({"inputs": inputs})


TRITON = Engine(
    name="triton",
    what="a model repository for Triton's ONNX Runtime backend",
    command='docker run --rm -p 8000:8000 -p 8001:8001 -v "$PWD/repository:/models" '
    "nvcr.io/nvidia/tritonserver:25.10-py3 tritonserver --model-repository=/models",
    takes_options=False,
    links=False,
    values=_values,
    write=_write,
)
