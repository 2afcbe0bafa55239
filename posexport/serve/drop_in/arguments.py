"""The other arguments of ``torch.onnx.export`` than inputs, names and axes: which are ignored, and which refused."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from posexport.errors import PosexportError
from posexport.export.negotiate import LOWEST_OPSET

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


def by_name(named: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """``named`` with the ``positional`` arguments, which scripts for torch before 2.5 have."""
    if len(positional) > len(POSITIONAL):
        raise PosexportError(
            f"torch_onnx_export takes model, args, f and {len(POSITIONAL)} more arguments without their names, got "
            f"{len(positional)}; give them by name"
        )
    return {**named, **dict(zip(POSITIONAL, positional, strict=False))}


def check(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that would change the file, and warn once of those that are ignored.

    Raises:
        PosexportError: an argument asks for another file than posexport writes.
    """
    for name, (neutral, instead) in REFUSED.items():
        if not any(arguments[name] is value for value in neutral) and arguments[name] != {}:
            raise PosexportError(f"torch_onnx_export cannot do {name}={arguments[name]!r}: {instead}")
    # enums of torch, whose names are the same in every version
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
