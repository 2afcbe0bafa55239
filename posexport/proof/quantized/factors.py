"""SmoothQuant's factors of int8 graphs: powers of two that divide activations and multiply weights, one a channel.

A node multiplies activations by the inverse factors, or the parameters of the preceding normalisation are divided.
"""

import re
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from posexport.graph.precision.calibration import DIVIDED, SMOOTHING
from posexport.proof.quantized.match import Matched, factor_of
from posexport.proof.quantized.records import Array, Floats, StoredError, Use, constant

_DIVIDED = re.compile(rf"(?P<parameter>.+){DIVIDED}(_[0-9]+)?")


def smooths(op_type: str, second: str = "") -> bool:
    """Whether a node with this second input multiplies rows by inverse factors."""
    return op_type == "Mul" and second.startswith(SMOOTHING)


def constants_of(row: ir.Node | None) -> dict[str, Array]:
    """Inverse factors or divided parameters, by name, among the inputs of the node that computes activations."""
    if row is None:
        return {}
    names = [str(value.name) for value in row.inputs if value is not None]
    if len(names) == 2 and smooths(row.op_type, names[1]):
        names = names[1:]
    else:
        names = [name for name in names if _DIVIDED.fullmatch(name)]
    arrays = {str(value.name): constant(value) for value in row.inputs if value is not None and value.name in names}
    return {name: np.array(array) for name, array in arrays.items() if array is not None}


def vectors(parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters with one axis, by name, and 1 + p: Gemma's normalisations multiply by that."""
    found = {name: array for name, array in parameters.items() if array.ndim == 1 and array.dtype.kind == "f"}
    return found | {f"1 + {name}": np.float32(1) + array for name, array in found.items()}


def undivided(name: str, array: Array, parameters: Mapping[str, Array]) -> Array | None:
    """The parameter from which ``array`` differs by powers of two alone; None if there is none.

    The parameter that ``name`` is derived from is tried first.
    """
    divided = _DIVIDED.fullmatch(name)
    if divided is None:
        return None
    own = parameters.get(divided["parameter"])
    for parameter in [*([] if own is None else [own]), *parameters.values()]:
        if parameter.shape != array.shape or ((parameter == 0) != (array == 0)).any():
            continue
        mantissa, _ = np.frexp(np.divide(array, parameter, out=np.ones_like(array), where=parameter != 0))
        if (mantissa == 0.5).all():
            return parameter
    return None


def set_factor(matched: Matched, use: Use, parameters: Mapping[str, Array]) -> None:
    """Set the factor of a stored weight to the one that the graph divides its activations by.

    Channels that are always 0, and normalisations by none of ``parameters`` (`vectors`), get an estimate.

    Raises:
        StoredError: a factor is no power of two, or scale and bias of a normalisation are divided by different ones.
    """
    name, constants = use.stored.name, use.divided
    factor: Floats = np.full(use.stored.whole.shape[1], np.nan if constants else 1.0)
    for constant_name, array in constants.items():
        divisor = _divisor(constant_name, array, parameters)
        known = ~np.isnan(divisor)
        mantissa, _ = np.frexp(divisor[known])
        both = known & ~np.isnan(factor)
        if (factor[both] != divisor[both]).any() or (mantissa != 0.5).any():
            raise StoredError(f"{name}: its activations are divided by {constant_name}, which is not what smooths them")
        factor = np.where(np.isnan(factor), divisor, factor)
    unknown = np.isnan(factor)
    matched.factor = np.where(unknown, factor_of(matched), factor) if unknown.any() else factor


def _divisor(name: str, array: Array, parameters: Mapping[str, Array]) -> Floats:
    """[K], with NaN where it is unknown."""
    if name.startswith(SMOOTHING):
        return np.asarray(1 / array.reshape(-1).astype(np.float64))
    parameter = undivided(name, array, parameters)
    unknown: Floats = np.full(array.shape, np.nan)
    if parameter is None:
        return unknown
    return np.asarray(np.divide(parameter, array, out=unknown, where=array != 0, dtype=np.float64))
