"""Whether the shipped graph is proven, or an emulated copy where the provider does not compute in its precision.

Imports no torch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from posexport.base.spec import InputSpec, PartSpec
from posexport.base.system.extras import require
from posexport.base.targets.dtypes import BY_PRECISION, MODEL_DTYPE
from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.providers import provider_named
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.sources.source import Source

#: the precisions that are emulated
HALVES: tuple[PrecisionName, ...] = tuple(name for name in BY_PRECISION if BY_PRECISION[name].eps > MODEL_DTYPE.eps)


def computes(provider: str, precision: PrecisionName) -> bool:
    """Whether ``provider`` computes graphs of ``precision`` in it, so that a proof there needs no emulation."""
    return precision not in HALVES or provider_named(provider).computes(BY_PRECISION[precision])


def loads(provider: str, precision: PrecisionName) -> bool:
    """Whether ``provider`` runs graphs of ``precision``, be it in float32."""
    return precision not in HALVES or provider_named(provider).loads(BY_PRECISION[precision])


@contextmanager
def emulated_if(
    precision: PrecisionName | None, model: Path | bytes, parts: Sequence[PartSpec] = (), *, everywhere: bool = False
) -> Iterator[Path | bytes]:
    """A copy of ``model`` that computes in float32 and rounds to ``precision``, or for None ``model`` itself.

    Of ``parts`` both are directories. ``everywhere``: as of `posexport.graph.precision.emulate.emulate`.
    """
    if precision is None:
        yield model
        return
    require(f"emulating {precision}", "onnx_ir")
    from posexport.graph.precision.emulate import emulated

    with emulated(model, BY_PRECISION[precision], parts, everywhere=everywhere) as copy:
        yield copy


def stored_precision(model: Path) -> PrecisionName:
    """The precision of a lone .onnx: fp16 or bf16 where it has a weight of that type, else fp32."""
    import onnx

    types = {tensor.data_type for tensor in onnx.load(str(model), load_external_data=False).graph.initializer}
    half_types = (name for name in HALVES if onnx.TensorProto.DataType.Value(BY_PRECISION[name].onnx) in types)
    return next(half_types, MODEL_DTYPE.precision)


def widened(source: "Source") -> "Source":
    """``source`` with inputs of half precision as float32: a `Runner` rounds what it feeds, and so does a reference.

    NumPy has no bfloat16.
    """
    return msgspec.structs.replace(source, inputs=_widened(source.inputs))


def widened_parts(parts: Sequence[PartSpec]) -> list[PartSpec]:
    """``parts`` with float32 inputs, as emulated copies have."""
    return [msgspec.structs.replace(part, inputs=_widened(part.inputs)) for part in parts]


def _widened(specs: Sequence[InputSpec]) -> list[InputSpec]:
    half_types = {BY_PRECISION[name].name for name in HALVES}
    return [
        msgspec.structs.replace(spec, dtype=MODEL_DTYPE.name) if spec.dtype in half_types else spec for spec in specs
    ]


def check_emulation(target: Path, stored: PrecisionName, precision: PrecisionName) -> Literal["everything", "half"]:
    """The values that emulation of ``precision`` rounds: all of a float32 graph, or those in ``precision`` already.

    PosexportError where ``precision`` is not emulated, or the graph is in another precision.
    """
    if precision not in HALVES:
        raise PosexportError(f"--emulate must be {' or '.join(HALVES)}, got {precision}")
    if stored not in (precision, MODEL_DTYPE.precision):
        raise PosexportError(
            f"{target} is in {stored}, --emulate {precision} needs a model in {MODEL_DTYPE.precision} or {precision}; "
            f"convert it to one of them"
        )
    return "everything" if stored == MODEL_DTYPE.precision else "half"
