"""`plain` in Ray Serve, with its batching."""

import asyncio
import os

from plain import JOINED, SECONDS, Plain
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 1}, max_ongoing_requests=100)
class App:
    def __init__(self, folder: str) -> None:
        self._plain = Plain(folder)

    @serve.batch(max_batch_size=JOINED, batch_wait_timeout_s=SECONDS)
    async def _encode(self, requests: list[list[str]]) -> list[list[list[float]]]:
        vectors = await asyncio.to_thread(self._plain.encode, [text for texts in requests for text in texts])
        found, start = [], 0
        for texts in requests:
            found.append(vectors[start : start + len(texts)].tolist())
            start += len(texts)
        return found

    async def __call__(self, request: Request) -> dict[str, list[list[float]]]:
        return {"sentence_embedding": await self._encode((await request.json())["texts"])}


app = App.bind(os.environ["PLAIN"])
