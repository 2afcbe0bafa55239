"""Initializers whose numbers are made from the checkpoint when a pass or the writer reads them."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray
from torch import nn

from posexport.conversion.export.by_layers.levels import UnlikeError
from posexport.sources.made_later import by_address, made


def read_later(graph: ir.Graph, parameters: Iterable[nn.Parameter]) -> None:
    """Replace initializers that are parameters without their numbers, in place.

    Raises:
        UnlikeError: an initializer is another part of such a parameter than the whole, or transposed.
    """
    unmade = by_address(parameters)
    for value in graph.initializers.values() if unmade else ():
        tensor = value.const_value
        if tensor is None or (parameter := _owner(array := tensor.numpy(), unmade)) is None:
            continue
        whole = parameter.detach().numpy()
        place = array.ctypes.data, array.shape, array.strides
        forms = [form for form in (whole, whole.T) if place == (form.ctypes.data, form.shape, form.strides)]
        if not forms:
            raise UnlikeError
        make = partial(_tensor, parameter, tensor.dtype, transposed=forms[0] is not whole)
        value.const_value = ir.LazyTensor(make, tensor.dtype, ir.Shape(array.shape), name=tensor.name)


def _owner(array: NDArray[Any], unmade: Mapping[int, nn.Parameter]) -> nn.Parameter | None:
    """The parameter in whose memory ``array`` is."""
    at = array.ctypes.data
    inside = (p for start, p in unmade.items() if start <= at < start + p.numel() * p.element_size())
    return next(inside, None)


def _tensor(parameter: nn.Parameter, dtype: ir.DataType, *, transposed: bool) -> ir.TensorProtocol:
    array = made(parameter).numpy()
    return ir.Tensor(array.T if transposed else array, dtype)
