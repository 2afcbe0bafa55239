"""Where half precision can be computed, and where it is not worth it: by the kernel table."""

from dataclasses import replace

from posexport.errors import PosexportError
from posexport.targets.dtypes import BY_PRECISION, FLOAT32
from posexport.targets.providers import targets
from posexport.targets.target import PORTABLE, Target

#: a provider with a kernel for any of these computes in a type
_ARITHMETIC = ("MatMul", "Attention", "Max")


def computes(target: Target) -> bool:
    """Whether the target's provider has arithmetic in the target's type, in some operators at least."""
    return not all(target.needs_kernel(operator) for operator in _ARITHMETIC)


def check_arithmetic(target: Target) -> None:
    """PosexportError where the target's provider has none in the target's type."""
    if target.provider is None or computes(target):
        return
    types = [dtype for dtype in BY_PRECISION.values() if dtype != FLOAT32 and computes(replace(target, dtype=dtype))]
    precisions = "".join(f"--precision {dtype.precision} or " for dtype in types)
    raise PosexportError(
        f"on {target.provider.label} ONNX Runtime has no kernels that compute in {target.dtype.name}, so --target "
        f"{target.name} cannot have --precision {target.dtype.precision}; use {precisions}another --target"
    )


def remarks(target: Target) -> tuple[str, ...]:
    """What a user who chose half precision for the target should know."""
    if target.provider is not None:
        if target.needs_kernel("MatMul") is None:
            return ()
        return (
            f"on {target.provider.label} {target.dtype.name} halves the file and brings no speed: ONNX Runtime "
            "multiplies matrices in float32 there",
        )
    unable = [p.label for p in targets().values() if not computes(replace(target, name=p.name))]
    if target.name == PORTABLE and unable:
        return (
            f"{target.dtype.name} does not run on {' and '.join(unable)}: ONNX Runtime has no kernels for it there",
        )
    return ()
