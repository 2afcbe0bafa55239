"""Asks a running MLServer by tritonclient over HTTP and gRPC, and prints what came as JSON.

Usage: python oip_client.py HTTP_ADDRESS GRPC_ADDRESS MODEL < texts.json
"""

import json
import sys
import threading

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


def text_input(kind, texts):
    given = kind.InferInput("text", [len(texts)], "BYTES")
    array = np.array([text.encode() for text in texts], dtype=object)
    given.set_data_from_numpy(array, **({"binary_data": False} if kind is tritonclient.http else {}))
    return [given]


def cancelled(client, model, texts, calls):
    """Status of so many calls over gRPC that are cancelled as soon as they are sent, or that may take 1 ms."""
    statuses, done = [], threading.Semaphore(0)

    def came(*, error, **_):  # tritonclient names what it passes
        statuses.append("answered" if error is None else str(error.status()))
        done.release()

    given = text_input(tritonclient.grpc, texts)
    for call in range(calls):
        sent = client.async_infer(model, given, came, client_timeout=0.001 if call % 2 else None)
        if not call % 2:
            sent.cancel()
    for _ in range(calls):
        if not done.acquire(timeout=60):
            break
    return statuses


def main(http: str, grpc: str, model: str) -> None:
    texts = json.load(sys.stdin)
    found = {}
    for name, kind, address in (("http", tritonclient.http, http), ("grpc", tritonclient.grpc, grpc)):
        client = kind.InferenceServerClient(address)
        metadata = client.get_model_metadata(model, **({"as_json": True} if name == "grpc" else {}))
        output = kind.InferRequestedOutput("sentence_embedding", **({"binary_data": False} if name == "http" else {}))
        answer = client.infer(model, text_input(kind, texts), outputs=[output])
        ids = kind.InferInput("input_ids", [1, 2], "INT64")
        ids.set_data_from_numpy(np.array([[1, 10**6]], np.int64), **({"binary_data": False} if name == "http" else {}))
        errors = []
        for bad in ([ids], text_input(kind, [])):
            try:
                client.infer(model, bad)
            except InferenceServerException as err:
                errors.append([str(err.status()), err.message()])
        ready = [client.is_server_ready(), client.is_model_ready(model)]
        found[name] = {
            "ready": ready,
            "inputs": [[port["name"], port["datatype"]] for port in metadata["inputs"]],
            "vectors": answer.as_numpy("sentence_embedding").tolist(),
            "errors": errors,
        }
    statuses = cancelled(client, model, texts, 40)
    after = client.infer(model, text_input(kind, texts)).as_numpy("sentence_embedding")
    print(json.dumps({**found, "cancelled": statuses, "after": after.tolist()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
