"""Asks a running MLServer by tritonclient over HTTP and gRPC, and prints what came as JSON.

Usage: python oip_client.py HTTP_ADDRESS GRPC_ADDRESS MODEL < texts.json
"""

import json
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


def text_input(kind, texts):
    given = kind.InferInput("text", [len(texts)], "BYTES")
    array = np.array([text.encode() for text in texts], dtype=object)
    given.set_data_from_numpy(array, **({"binary_data": False} if kind is tritonclient.http else {}))
    return [given]


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
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
