"""Initializers that read a lazy parameter (`posexport.sources.lazy_parameters`) on access."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn

from posexport.conversion.export.by_layers.levels import UnlikeError
from posexport.graph.queries import FOLDED_FROM, names_of
from posexport.graph.transposed import InParts, parts
from posexport.sources.lazy_parameters import in_file, is_lazy, numbers, values
from posexport.sources.memory_mapped import release


def make_lazy(graph: ir.Graph, modules: Iterable[nn.Module]) -> None:
    """Replace the initializers that are lazy parameters of ``modules``, or transposed ones, in place.

    Raises:
        UnlikeError: an initializer is a slice of a lazy parameter, or was computed from one.
    """
    named = [pair for module in modules for pair in module.named_parameters(remove_duplicate=False)]
    lazy = [(name, parameter) for name, parameter in named if is_lazy(parameter)]
    names, by_address = {name for name, _ in lazy}, {parameter.data_ptr(): parameter for _, parameter in lazy}
    for value in graph.initializers.values() if lazy else ():
        tensor = value.const_value
        if tensor is None:
            continue
        parameter = _owner(array := tensor.numpy(), by_address)
        if parameter is None:
            # folded by the exporter from storage without values
            if FOLDED_FROM in value.metadata_props and names.intersection(names_of(value)):
                raise UnlikeError
            continue
        whole = parameter.detach().numpy()
        place = array.ctypes.data, array.shape, array.strides
        forms = [form for form in (whole, whole.T) if place == (form.ctypes.data, form.shape, form.strides)]
        if not forms:
            raise UnlikeError
        transposed = forms[0] is not whole
        read = partial(_tensor, parameter, tensor.dtype, transposed=transposed)
        in_parts = partial(_parts, parameter, array.dtype, transposed=transposed)
        value.const_value = InParts(read, in_parts, tensor.dtype, ir.Shape(array.shape), name=tensor.name)


def _owner(array: NDArray[Any], by_address: Mapping[int, nn.Parameter]) -> nn.Parameter | None:
    """The parameter whose storage ``array`` is in."""
    at = array.ctypes.data
    inside = (p for start, p in by_address.items() if start <= at < start + p.numel() * p.element_size())
    return next(inside, None)


def _tensor(parameter: nn.Parameter, dtype: ir.DataType, *, transposed: bool) -> ir.TensorProtocol:
    array = values(parameter).numpy()
    return ir.Tensor(array.T if transposed else array, dtype)


def _parts(parameter: nn.Parameter, dtype: np.dtype[Any], *, transposed: bool) -> Iterator[NDArray[Any]]:
    """As `_tensor`, from the checkpoint's bfloat16 where it has that."""
    pages = in_file(parameter)
    if pages is not None and pages.dtype == torch.float16:
        pages = None  # which NumPy casts 20 times slower than PyTorch
    array = values(parameter).numpy() if pages is None else numbers(pages)
    yield from parts(array.T if transposed else array, dtype)
    release([] if pages is None else [pages])
