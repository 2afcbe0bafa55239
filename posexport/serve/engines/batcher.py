"""Adaptive batching by tokens, for engines with batching by the number of requests.

A batch holds the requests that arrived while the previous batch was computed, up to a budget of tokens: an idle machine
computes a request immediately, and batches grow with the load. Texts are validated before they are
joined; arrays are not joined, and `Service.compute` validates them.
"""

import asyncio
import collections
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from posexport.errors import PosexportError
from posexport.serve.engines.service import Outputs, Request

Compute = Callable[[Sequence[Request]], Sequence[Outputs | PosexportError]]


class Batcher:
    """Joins the requests of one event loop; ``compute`` runs in one worker thread, one batch at a time."""

    def __init__(self, compute: Compute, budget: int, on_batch: Callable[[int, int], None] = lambda *_: None) -> None:
        """``on_batch``: called with the number of requests and of tokens of each batch, for metrics."""
        self._compute = compute
        self._budget = budget
        self._on_batch = on_batch
        self._waiting: collections.deque[tuple[Request, asyncio.Future[Outputs]]] = collections.deque()
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "posexport")

    async def submit(self, request: Request) -> Outputs:
        """The outputs of a request.

        Raises its PosexportError. The request of a cancelled caller leaves the queue; if it is being computed, its
        outputs are dropped.
        """
        future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while batch := self._next():
            requests = [request for request, _ in batch]
            self._on_batch(len(requests), sum(request.tokens for request in requests))
            try:
                results = await asyncio.get_running_loop().run_in_executor(self._thread, self._compute, requests)
            except Exception as err:  # noqa: BLE001 (the callers get the exception, the worker continues)
                for _, future in batch:
                    if not future.done():
                        future.set_exception(err)
                continue
            for (_, future), outputs in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(outputs, PosexportError):
                    future.set_exception(outputs)
                else:
                    future.set_result(outputs)

    def _next(self) -> list[tuple[Request, asyncio.Future[Outputs]]]:
        """The oldest requests that fit the budget, at least one; cancelled ones are dropped."""
        batch: list[tuple[Request, asyncio.Future[Outputs]]] = []
        tokens = 0
        while self._waiting:
            request, future = self._waiting[0]
            if not future.done():
                if batch and tokens + request.tokens > self._budget:
                    break
                batch.append((request, future))
                tokens += request.tokens
            self._waiting.popleft()
        return batch
