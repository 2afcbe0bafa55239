"""Tables of operators that ``torch.onnx.export`` makes again for every export, and parts of them dozens of times.

For every export it reads the source of some 600 functions of onnxscript for their domain, which they know, and their
annotations for their signatures; and it asks the dispatcher for all composite operators once for each namespace.
Reason: more than a second of an export; a module is exported several times where one shows more of its axes. Seen in
2.13 with onnxscript 0.7; the tables are the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from onnxscript._internal.values import TracedOnnxFunction
from torch._export import utils
from torch.onnx._internal.exporter._registration import ONNXRegistry

from posexport.sources.torch_fixes.patch import patched

_FROM_TORCHLIB = ONNXRegistry.from_torchlib


@contextmanager
def with_torchlib_once() -> Iterator[None]:
    """Inside the block, around one export, tables are made once; each export gets a separate registry."""
    asked_once = cache(utils._materialize_cpp_cia_ops)  # noqa: SLF001
    with (
        patched(ONNXRegistry, "from_torchlib", staticmethod(_own_registry)),
        patched(utils, "_materialize_cpp_cia_ops", asked_once),
    ):
        yield


def _own_registry(opset_version: int) -> ONNXRegistry:
    registry = ONNXRegistry()
    known = _registry(opset_version)
    registry._opset_version = opset_version  # noqa: SLF001
    registry.functions = {target: [*functions] for target, functions in known.functions.items()}
    return registry


@cache
def _registry(opset_version: int) -> ONNXRegistry:
    # only the domain of a function's IR is read, and its opset has the same
    with patched(TracedOnnxFunction, "function_ir", TracedOnnxFunction.opset):
        return _FROM_TORCHLIB(opset_version=opset_version)
