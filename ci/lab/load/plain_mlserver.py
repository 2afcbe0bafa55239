"""`plain` in MLServer, with its adaptive batching."""

import asyncio

import mlserver
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri
from plain import Plain


class Runtime(mlserver.MLModel):
    async def load(self) -> bool:
        self._plain = Plain(await get_model_uri(self.settings))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (given,) = payload.inputs
        vectors = await asyncio.to_thread(self._plain.encode, StringCodec.decode_input(given))
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("sentence_embedding", vectors)]
        )
