"""Nodes of a graph, functions counted once: ``python -m posexport.inspect.bench.nodes MODEL.onnx``."""

import sys
from pathlib import Path

from posexport.graph.protos import all_nodes


def count(path: Path) -> int:
    """Nodes of the graph, of the bodies of its loops and branches, and of its functions, however often called."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return sum(1 for scope in [model.graph, *model.functions] for _ in all_nodes(scope.node))


if __name__ == "__main__":
    sys.stdout.write(f"{count(Path(sys.argv[1]))}\n")
