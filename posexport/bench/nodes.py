"""How many nodes a graph has, those of functions counted once: ``python -m posexport.bench.nodes MODEL.onnx``."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def count(path: Path) -> int:
    """Nodes of the graph, of the bodies of its loops and branches, and of its functions, however often called."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return _count(model.graph.node) + sum(_count(function.node) for function in model.functions)


def _count(nodes: Iterable[Any]) -> int:
    return sum(1 + sum(_count(graph.node) for graph in _bodies(node)) for node in nodes)


def _bodies(node: Any) -> Iterable[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


if __name__ == "__main__":
    sys.stdout.write(f"{count(Path(sys.argv[1]))}\n")
