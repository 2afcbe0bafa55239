"""A bundle in Ray Serve: replicas that batch by tokens, and an ingress that retries.

Ray Serve returns an error for the requests of a replica that died. So clients call an ingress without a model, which
sends each request to a replica, and to another one if that dies. Requests are idempotent.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from posexport.base.system.extras import require
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.errors import PosexportError
from posexport.run.batches import BATCH_TOKENS
from posexport.serve.engines.service import Outputs, Request, Service

require("posexport.serve.engines.ray_serve", "ray")

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

#: the largest body of a request, in bytes
_LARGEST = 64 * 1024 * 1024
#: replicas that a request is sent to before the client gets the error
_TRIES = 5
#: seconds that a batch waits for more requests
_WAIT = 0.002


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST: ``{"texts": ["a", "b"]}``, or ``{"inputs": {"input_ids": [[5, 2, 7]]}}``.

    ``text`` is an alias of ``texts``, and may be one string.
    """

    texts: list[str] | None = None
    text: str | list[str] | None = None
    inputs: dict[str, Any] | None = None
    prompt_name: str | None = None


class Replica:
    """A replica: one session, with batches by tokens."""

    def __init__(self, bundle: str, options: dict[str, Any]) -> None:
        self._service = Service(bundle, **options)
        self._compute.set_max_batch_size(self._service.batch_tokens)

    async def check_health(self) -> None:
        """Ray Serve calls it, and replaces a replica that raises."""
        await asyncio.to_thread(self._service.probe)

    async def answer(self, body: Body) -> tuple[int, bytes]:
        """The HTTP status and JSON of a request's response."""
        try:
            request = await asyncio.to_thread(self._request, body)
            outputs = await self._compute(request)
        except PosexportError as err:
            return 400, msgspec.json.encode({"error": str(err)})
        if isinstance(outputs, PosexportError):
            return 400, msgspec.json.encode({"error": str(outputs)})
        return 200, await asyncio.to_thread(_as_json, outputs)

    def about(self) -> dict[str, Any]:
        """The model's name, task and inputs: the response to GET."""
        manifest = self._service.manifest
        takes = ["texts"] if self._service.takes_texts else [spec.name for spec in manifest.inputs]
        longest = manifest.limits.max_length
        return {"model": manifest.source.name, "task": manifest.task, "takes": takes, "max_length": longest}

    def _request(self, body: Body) -> Request:
        if sum(field is not None for field in (body.texts, body.text, body.inputs)) != 1:
            raise PosexportError('give "texts" or "inputs", one of the two')
        if body.inputs is not None:
            return self._service.arrays(body.inputs)
        texts = [body.text] if isinstance(body.text, str) else body.text or body.texts
        return self._service.texts(texts, body.prompt_name)

    @serve.batch(
        max_batch_size=BATCH_TOKENS,
        batch_wait_timeout_s=_WAIT,
        # a request over the budget is a batch alone; Ray Serve would refuse it
        batch_size_fn=lambda requests: 1 if len(requests) == 1 else sum(request.tokens for request in requests),
    )
    async def _compute(self, requests: Sequence[Request]) -> list[Outputs | PosexportError]:
        return await asyncio.to_thread(self._service.compute, requests)


class Ingress:
    """The HTTP endpoint: parses requests and sends them to replicas."""

    def __init__(self, replica: DeploymentHandle) -> None:
        self._replica = replica

    async def __call__(self, request: HttpRequest) -> Response:
        if request.method == "GET":
            return _json(200, msgspec.json.encode(await self._replica.about.remote()))
        if request.method != "POST":
            return _error(405, f"{request.method} is not served; POST a JSON document")
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > _LARGEST:
                return _error(413, f"the request has more than {_LARGEST} bytes; send fewer texts at once")
        try:
            body = msgspec.json.decode(data, type=Body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            return _error(400, f'the body must be JSON such as {{"texts": ["a text"]}}: {err}')
        for tries_left in reversed(range(_TRIES)):
            try:
                return _json(*await self._replica.answer.remote(body))
            except RayActorError:
                if not tries_left:
                    raise
        raise AssertionError


def application(bundle: str | Path, *, replicas: int = 1, cpus: float = 1, **options: Any) -> serve.Application:
    """The application that ``serve run`` deploys.

    ``cpus``: CPUs, and so threads, of each replica. ``options``: provider, threads, batch_tokens and
    request_characters of `posexport.serve.engines.service.Service`.
    """
    options = {"threads": max(1, int(cpus)), **options}
    on_gpu = options.get("provider", DEFAULT_PROVIDER) != DEFAULT_PROVIDER
    actor = {"num_cpus": cpus, **({"num_gpus": 1} if on_gpu else {})}
    replica = (
        serve.deployment(Replica)
        .options(
            name="replica",
            num_replicas=replicas,
            ray_actor_options=actor,
            max_ongoing_requests=100,
            health_check_period_s=5,
        )
        .bind(str(Path(bundle).absolute()), options)
    )
    return (
        serve.deployment(Ingress)
        .options(name="ingress", num_replicas=1, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
        .bind(replica)
    )


def _as_json(outputs: Outputs) -> bytes:
    return msgspec.json.encode({name: array.tolist() for name, array in outputs.items()})


def _json(status: int, data: bytes) -> Response:
    return Response(data, status_code=status, media_type="application/json")


def _error(status: int, sentence: str) -> Response:
    return _json(status, msgspec.json.encode({"error": sentence}))
