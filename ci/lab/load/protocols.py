"""A request of the pool as each engine's clients post it, and the rows in its answer. No library is needed."""

from typing import Any


def mlserver(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body, of the Open Inference Protocol."""
    if "texts" in request:
        texts = request["texts"]
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]
    else:
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [len(rows), len(rows[0])], "data": rows}
            for name, rows in request["inputs"].items()
        ]
    return "/v2/models/load/infer", {"inputs": inputs, "outputs": [{"name": "sentence_embedding"}]}


def mlserver_rows(answer: dict[str, Any]) -> list[list[float]]:
    (output,) = answer["outputs"]
    rows, size = output["shape"]
    return [output["data"][row * size : (row + 1) * size] for row in range(rows)]


def ray_serve(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/", {name: request[name] for name in ("texts", "inputs") if name in request}


def ray_serve_rows(answer: dict[str, Any]) -> list[list[float]]:
    rows: list[list[float]] = answer["sentence_embedding"]
    return rows


PROTOCOLS = {"mlserver": (mlserver, mlserver_rows), "ray-serve": (ray_serve, ray_serve_rows)}
