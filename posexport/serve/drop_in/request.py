"""The call of `posexport.torch_onnx_export`: which arguments are ignored or refused, and the others as a `Request`."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from torch import nn

from posexport.conversion.export.negotiate import LOWEST_OPSET
from posexport.errors import PosexportError

#: positional arguments after ``model, args, f``, in the order of torch up to 2.4
POSITIONAL = (
    *("export_params", "verbose", "training", "input_names", "output_names", "operator_export_type", "opset_version"),
    *("do_constant_folding", "dynamic_axes", "keep_initializers_as_inputs", "custom_opsets"),
    *("export_modules_as_functions", "autograd_inlining"),
)
#: arguments about torch's exporters, which are ignored, with the values that change nothing
IGNORED: dict[str, tuple[Any, ...]] = {
    "verbose": (None, False),
    "dynamo": (None,),
    "report": (False,),
    "optimize": (True,),
    "profile": (False,),
    "dump_exported_program": (False,),
    "artifacts_dir": (".",),
    "fallback": (False,),
    "do_constant_folding": (True,),
    "export_modules_as_functions": (False, None),
    "autograd_inlining": (True,),
}
#: arguments that would change the file: values that change nothing, and what to do instead
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "export_params": ((True,), "the weights are part of what is proven; leave it True"),
    "keep_initializers_as_inputs": ((False, None), "weights that callers may replace cannot be proven; leave it False"),
    "custom_opsets": ((None,), "operators of other domains are not written; leave it out"),
    "custom_translation_table": ((None,), "posexport chooses the operators; leave it out"),
}
#: arguments that `Request` has unchanged
_UNCHANGED = (
    *("args", "kwargs", "input_names", "output_names", "dynamic_axes", "dynamic_shapes", "external_data", "parity"),
)
#: options of `posexport.convert`
_OPTIONS = ("target", "lowering", "inline", "provider", "lengths", "threads", "progress", "remark")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `posexport.torch_onnx_export` that decide the file.

    Attributes:
        path: the file's path; None: ``buffer``, or no file.
        buffer: receives the file's bytes.
        external_data: store weights in a second file; None: if one file cannot hold them.
        parity: prove the graph first.
        options: options of `posexport.convert`.
    """

    module: nn.Module
    args: Any = ()
    kwargs: Mapping[str, Any] | None = None
    path: Path | None = None
    buffer: BinaryIO | None = None
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    dynamic_axes: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    external_data: bool | None = None
    parity: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise PosexportError for what can be refused before the module runs."""
        if not isinstance(self.module, nn.Module) or type(self.module).__module__.startswith("torch.jit"):
            raise PosexportError(
                f"torch_onnx_export takes an nn.Module, got {type(self.module).__name__}; give the module that it was "
                "made from"
            )
        other = next(
            (p.dtype for p in self.module.parameters() if p.is_floating_point() and p.dtype.itemsize != 4), None
        )
        if other is not None:
            raise PosexportError(
                f"{type(self.module).__name__} has parameters of {other}; give model.float(), and a precision to "
                "posexport.convert where the file should have another"
            )
        if self.path is not None and not self.path.parent.is_dir():
            raise PosexportError(f"{self.path} cannot be written: {self.path.parent} is no directory; make it first")
        if self.buffer is not None and self.external_data:
            raise PosexportError("external_data=True needs a file's name in f, got a buffer, which has no place beside")
        if self.dynamic_axes and self.dynamic_shapes:
            raise PosexportError("give dynamic_axes or dynamic_shapes, not both: both say which axes vary")


def request(arguments: Mapping[str, Any]) -> Request:
    """The request of a call of `posexport.torch_onnx_export`."""
    path, buffer = _destination(arguments["f"])
    version = arguments["opset_version"]
    return Request(
        module=arguments["model"],
        path=path,
        buffer=buffer,
        options={
            **{name: arguments[name] for name in _OPTIONS},
            # scripts name an old version so that every runtime reads the file, which the lowest one here does too
            "opset": None if version is None else max(version, LOWEST_OPSET),
        },
        **{name: arguments[name] for name in _UNCHANGED},
    )


def _destination(f: Any) -> tuple[Path | None, BinaryIO | None]:
    """``f`` as a path, or as a buffer of bytes; both None if nothing is written."""
    if f is None:
        return None, None
    if isinstance(f, str | os.PathLike):
        return Path(os.fsdecode(f)), None
    if hasattr(f, "write"):
        return None, f
    raise PosexportError(f"f must be a path, a binary buffer or None, got {type(f).__name__}")


def by_name(named: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """``named`` with the ``positional`` arguments, which scripts for torch before 2.5 have."""
    if len(positional) > len(POSITIONAL):
        raise PosexportError(
            f"torch_onnx_export takes model, args, f and {len(POSITIONAL)} more arguments without their names, got "
            f"{len(positional)}; give them by name"
        )
    return {**named, **dict(zip(POSITIONAL, positional, strict=False))}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would change the file, and warn once of those that are ignored.

    Raises:
        PosexportError: an argument asks for another file than posexport writes.
    """
    for name, (neutral, instead) in REFUSED.items():
        if not any(arguments[name] is value for value in neutral) and arguments[name] != {}:
            raise PosexportError(f"torch_onnx_export cannot do {name}={arguments[name]!r}: {instead}")
    # enums of torch with the same names in every version
    if (mode := arguments["training"]) is not None and getattr(mode, "name", mode) not in ("EVAL", False):
        raise PosexportError(
            f"torch_onnx_export cannot do training={mode}: the module is converted in eval mode; leave it out"
        )
    if (kind := arguments["operator_export_type"]) is not None and getattr(kind, "name", kind) != "ONNX":
        raise PosexportError(
            f"torch_onnx_export cannot do operator_export_type={kind}: only ONNX operators are written; leave it out"
        )
    ignored = [name for name, neutral in IGNORED.items() if not any(arguments[name] == value for value in neutral)]
    if (arguments["opset_version"] or LOWEST_OPSET) < LOWEST_OPSET:
        ignored.append(f"opset_version={arguments['opset_version']} (the lowest that is written is {LOWEST_OPSET})")
    if ignored:
        warnings.warn(f"torch_onnx_export ignores {', '.join(ignored)}", UserWarning, stacklevel=3)
