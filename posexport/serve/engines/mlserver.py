"""The runtime of a bundle in MLServer: Open Inference Protocol v2 over REST and gRPC.

MLServer's adaptive batching joins requests before the runtime sees them: a long text counts as much as a short one,
token ids of different lengths cannot be joined, and one invalid request fails its whole batch. So it stays off
(``max_batch_size`` 0, MLServer's default), and the runtime joins requests by tokens.
"""

import asyncio
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.system.extras import require
from posexport.base.targets.dtypes import BY_NAME, MODEL_DTYPE
from posexport.errors import PosexportError
from posexport.serve.engines.batcher import Batcher
from posexport.serve.engines.service import Outputs, Service

require("posexport.serve.engines.mlserver", "mlserver")

import mlserver
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError, MLServerError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor, RequestInput
from mlserver.utils import get_model_uri

#: accepted names of a text embedder's input; the metadata has the first
TEXT = ("text", "texts")
#: names of metrics
REQUESTS_METRIC, TOKENS_METRIC = "posexport_batch_requests", "posexport_batch_tokens"
_DATATYPES = {
    "int64": "INT64",
    "int32": "INT32",
    "bool": "BOOL",
    "float64": "FP64",
    "float32": "FP32",
    "float16": "FP16",
    "bfloat16": "BF16",
}


def _without_traceback(record: logging.LogRecord) -> bool:
    """Logging filter: MLServer 1.7 logs a traceback for client errors; this leaves the sentence."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, MLServerError) and error.status_code < 500:
        record.msg, record.args, record.exc_info = f"refused a request: {error}", (), None
    return True


for _name in ("mlserver.grpc", "mlserver.parallel"):
    logging.getLogger(_name).addFilter(_without_traceback)


class Runtime(mlserver.MLModel):
    """MLServer's ``implementation``; ``parameters.extra`` of model-settings.json holds `Service`'s options."""

    async def load(self) -> bool:
        """Open the bundle at ``parameters.uri``; MLServer logs the PosexportError if that fails."""
        extra = (self.settings.parameters.extra if self.settings.parameters else None) or {}
        uri = await get_model_uri(self.settings)
        self._service = await asyncio.to_thread(lambda: Service(uri, **extra))
        for name in (REQUESTS_METRIC, TOKENS_METRIC):
            mlserver.register(name, "of one call of the model")
        self._batcher = Batcher(self._service.compute, self._service.batch_tokens, _log)
        self.inputs, self.outputs = _metadata(self._service)
        await asyncio.to_thread(self._service.probe)
        return True

    async def unload(self) -> bool:
        self._batcher.close()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Texts in ``text`` to vectors, or tensors by the names of the bundle's inputs to its outputs.

        An invalid request is HTTP 400 or gRPC INVALID_ARGUMENT, with the sentence that says why.
        """
        try:
            request = await asyncio.to_thread(self._request, payload)
            outputs = await self._batcher.submit(request)
            return self._response(outputs, payload)
        except PosexportError as err:
            raise InferenceError(str(err)) from err

    def _request(self, payload: InferenceRequest) -> Any:
        inputs = {tensor.name: tensor for tensor in payload.inputs}
        if len(inputs) < len(payload.inputs):
            raise PosexportError("two inputs of the request have the same name; give each once")
        text = next((name for name in TEXT if name in inputs), None)
        if not self._service.takes_texts or text is None:
            return self._service.arrays({name: _array(tensor) for name, tensor in inputs.items()})
        if len(inputs) > 1:
            tensors = ", ".join(name for name in inputs if name != text)
            raise PosexportError(f"the request has {text} and {tensors}; give {text} alone, or tensors alone")
        prompt_name = getattr(payload.parameters, "prompt_name", None)
        return self._service.texts(_strings(inputs[text]), prompt_name)

    def _response(self, outputs: Outputs, payload: InferenceRequest) -> InferenceResponse:
        names = [tensor.name for tensor in payload.outputs or []] or list(outputs)
        if unknown := [name for name in names if name not in outputs]:
            raise PosexportError(f"unknown output {', '.join(unknown)}; this request gives {', '.join(outputs)}")
        encoded = [NumpyCodec.encode_output(name, _encodable(outputs[name])) for name in names]
        return InferenceResponse(
            id=payload.id, model_name=self.name, model_version=self.version, parameters=None, outputs=encoded
        )


def _log(requests: int, tokens: int) -> None:
    mlserver.log(**{REQUESTS_METRIC: requests, TOKENS_METRIC: tokens})


def _strings(tensor: RequestInput) -> list[str]:
    if tensor.datatype != "BYTES":
        raise PosexportError(f"{tensor.name} must have datatype BYTES, got {tensor.datatype}; give strings")
    elements = tensor.data.root
    strings_only = all(isinstance(x, str | bytes) for x in (elements if isinstance(elements, list) else [elements]))
    if not strings_only:
        raise PosexportError(f"{tensor.name} must hold strings; give its data as a list of strings")
    try:
        strings: list[str] = StringCodec.decode_input(tensor)
    except UnicodeDecodeError as err:
        raise PosexportError(f"{tensor.name} is no UTF-8 (byte {err.start}: {err.reason}); give UTF-8") from err
    if int(np.prod(tensor.shape)) != len(strings):
        raise PosexportError(
            f"{tensor.name} has shape {tensor.shape} and {len(strings)} strings; give the shape [{len(strings)}]"
        )
    return strings


def _array(tensor: RequestInput) -> NDArray[Any]:
    if tensor.datatype == "BYTES":
        raise PosexportError(f"{tensor.name} has datatype BYTES; this bundle takes numbers there")
    try:
        array: NDArray[Any] = NumpyCodec.decode_input(tensor)
    except (ValueError, TypeError, OverflowError) as err:
        raise PosexportError(
            f"{tensor.name} is no {tensor.datatype} tensor of shape {tensor.shape}: {err}; give as many numbers as its "
            "shape has"
        ) from err
    return array


def _encodable(array: NDArray[Any]) -> NDArray[Any]:
    """bfloat16, which NumPy has no name for, as float32; other arrays as they are."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _metadata(service: Service) -> tuple[list[MetadataTensor], list[MetadataTensor]]:
    """Inputs and outputs for the model's metadata endpoint; -1 is an axis of any size."""

    def tensor(name: str, dtype: str, axes: list[int | str]) -> MetadataTensor:
        return MetadataTensor(
            name=name,
            datatype=_DATATYPES[BY_NAME[dtype].name],
            shape=[axis if isinstance(axis, int) else -1 for axis in axes],
        )

    manifest = service.manifest
    outputs = [tensor(spec.name, MODEL_DTYPE.name, spec.axes) for spec in manifest.outputs]
    if service.takes_texts:
        from posexport.run.embed import EMBEDDING

        return [MetadataTensor(name=TEXT[0], datatype="BYTES", shape=[-1])], [o for o in outputs if o.name == EMBEDDING]
    return [tensor(spec.name, spec.dtype, spec.axes) for spec in manifest.inputs], outputs
