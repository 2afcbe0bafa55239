"""Bytes of weights that a decode step reads: ``python -m posexport.inspect.bench.reads FILE``.

FILE is a graph, a checkpoint in safetensors, or llama.cpp's file (where gguf is installed). Of a table of embeddings a
step reads a row, unless the projection to the vocabulary has the same weights.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from posexport.graph.protos import all_nodes

#: operators that read rows of a table
_GATHERS = frozenset({"Gather", "GatherBlockQuantized"})


def of_graph(path: Path) -> int:
    """Initializers that an operator other than a gather reads, in the graph or in a body of it."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    read = {name for node in all_nodes(graph.node) if node.op_type not in _GATHERS for name in node.input}
    sizes = [_bytes(tensor) for tensor in graph.initializer if tensor.name in read]
    return sum(sizes)


def _bytes(tensor: Any) -> int:
    import onnx

    few_bits = tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    bits = 4 if few_bits else 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(math.prod(tensor.dims)) * bits // 8


def of_checkpoint(path: Path) -> int:
    """All tensors of a file in safetensors but the embeddings, by the file's header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    spans = [entry["data_offsets"] for name, entry in header.items() if "embed_tokens" not in name]
    return sum(end - begin for begin, end in spans)


def of_gguf(path: Path) -> int:
    """All tensors of llama.cpp's file but the embeddings."""
    import gguf

    tensors = gguf.GGUFReader(path).tensors
    return sum(int(tensor.n_bytes) for tensor in tensors if tensor.name != "token_embd.weight")


KINDS = {".onnx": of_graph, ".safetensors": of_checkpoint, ".gguf": of_gguf}

if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.stdout.write(f"{KINDS[path.suffix](path)}\n")
