"""Checks that a graph has the inputs and outputs that the manifest declares."""

from collections.abc import Sequence
from typing import Any

from posexport.errors import PosexportError
from posexport.spec import InputSpec, Interface, OutputSpec
from posexport.targets.dtypes import BY_ORT_TYPE


def check_declared(file: str, graph: Interface, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise PosexportError unless the session's ``inputs`` and ``outputs`` equal ``graph``, in the same order."""
    _compare(file, "inputs", [_input(spec) for spec in graph.inputs], [_session_value(arg, True) for arg in inputs])
    _compare(
        file, "outputs", [_output(spec) for spec in graph.outputs], [_session_value(arg, False) for arg in outputs]
    )


def _input(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype} {spec.axes}"


def _output(spec: OutputSpec) -> str:
    return f"{spec.name} {spec.axes}"


def _session_value(arg: Any, is_input: bool) -> str:
    known = BY_ORT_TYPE.get(arg.type)
    dtype = f"{known.name if known else arg.type} " if is_input else ""
    return f"{arg.name} {dtype}{list(arg.shape)}"


def _compare(file: str, kind: str, declared: list[str], actual: list[str]) -> None:
    if declared != actual:
        raise PosexportError(
            f"{file} has the {kind} {'; '.join(actual)}, the manifest says {'; '.join(declared)}: convert the bundle "
            "again"
        )
