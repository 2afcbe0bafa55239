"""``path/to/file.py:factory``: a module of the user's own.

The factory takes no arguments and returns the module alone, ``(module, inputs)`` or ``(module, inputs, axes)``:
``inputs`` maps the names of ``forward``'s arguments to example tensors, ``axes`` maps an input's name to its axes'
names, ``{"x": ["batch_size", "sequence_length", 16]}``. A tuple of tensors takes the names of ``forward``'s parameters.
A module with an attribute ``inputs`` (a list of `InputSpec`, as posexport's own definitions have) needs neither.

The file is executed: it is run only because the user named it.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posexport.encodings.base import Encoding
from posexport.errors import PosexportError
from posexport.models.envelope import envelope_of_module
from posexport.sources.base import Source
from posexport.sources.probe import probe
from posexport.sources.user_module import by_name, likely_line, not_the_module_s, quoted, raised
from posexport.sources.weights import digest
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, Axis, EncodingSpec, InputSpec

#: the axes that a module of the user's may have beside fixed ones
_AXES = (BATCH, SEQUENCE, ENCODER_SEQUENCE)


def load(argument: str) -> Source:
    """Run the file, call the factory, and find out what the module takes and gives.

    Raises:
        PosexportError: no such file or factory, the factory failed, or its answer is not one of the three forms.
    """
    path_text, _, factory_name = argument.rpartition(":")
    path = Path(path_text)
    answer = _call(path, factory_name)
    parts = answer if isinstance(answer, tuple) else (answer,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise PosexportError(
            f"{argument} must return a torch module, (module, inputs) or (module, inputs, axes), "
            f"got {type(answer).__name__}"
        )
    remarks = []
    if parts[0].training and (unsure := _random_in_training(parts[0])):
        remarks.append(f"the module was in training mode ({unsure}); it is converted in eval mode")
    module = parts[0].eval().float()
    tensors = _tensors(argument, module, parts[1]) if len(parts) > 1 and parts[1] is not None else {}
    inputs = _specs(argument, module, tensors, *parts[2:])
    probed = probe(argument, module, inputs, tensors, envelope_of_module(module))
    encodings = [m for m in module.modules() if isinstance(m, Encoding)]
    first = encodings[0] if encodings else None
    return Source(
        name=argument,
        label=f"{path.name}:{factory_name}",
        kind="python",
        module=by_name(argument, module, inputs, probed.outputs),
        inputs=inputs,
        outputs=probed.outputs,
        envelope=probed.envelope,
        encoding=None if first is None else EncodingSpec(name=first.name, parameters=dict(first.parameters_given)),
        task="features",
        sha256=hashlib.sha256(path.read_bytes() + digest(module).encode()).hexdigest(),
        padding_invariant=False,
        further_lengths=probed.further_lengths,
        remarks=[*remarks, *probed.remarks],
    )


def _call(path: Path, factory_name: str) -> Any:
    if not path.is_file():
        raise PosexportError(f"no such Python file: {path}")
    spec = importlib.util.spec_from_file_location(f"posexport_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PosexportError(f"{path} cannot be run as a Python file: its name must end in .py")
    namespace = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        sys.modules[spec.name] = namespace  # dataclasses and pickling look their module up
        spec.loader.exec_module(namespace)
        factory = getattr(namespace, factory_name, None)
        if isinstance(factory, nn.Module):
            raise PosexportError(
                f"{path}:{factory_name} is a module, not a factory: write a function that returns (model, inputs) and "
                "name that"
            )
        if not callable(factory):
            names = [name for name, value in vars(namespace).items() if callable(value) and not name.startswith("_")]
            raise PosexportError(f"{path} has no factory {factory_name!r}; it has {', '.join(names) or 'none'}")
        return factory()
    except BaseException as err:  # a file that exits must not end the command as if all were well
        if isinstance(err, PosexportError) or not_the_module_s(err):
            raise
        line = likely_line(err)
        said = raised(err) if isinstance(err, SystemExit) and not err.args else f"{type(err).__name__}: {quoted(err)}"
        raise PosexportError(f"{path}:{factory_name} failed: {said}" + (f" ({line})" if line else "")) from err
    finally:
        sys.path.remove(str(path.parent.resolve()))


def _random_in_training(module: nn.Module) -> str:
    """The first part of a module that gives other outputs in training mode; nothing where none is known to."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RReLU)
    for path, part in module.named_modules():
        if isinstance(part, kinds) and getattr(part, "p", True) and part.training:
            return f"{type(part).__name__} {path}".strip()
    return ""


def _tensors(argument: str, module: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """The example by the names of forward's parameters, which a tuple or a lone tensor takes in their order."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if isinstance(inputs, tuple | list) and inputs:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [name for name, p in inspect.signature(module.forward).parameters.items() if p.kind in kinds]
        if len(inputs) > len(names):
            raise PosexportError(
                f"{argument}: {len(inputs)} inputs for a forward with the parameters {', '.join(names) or 'none'}; "
                "give a dict from names to tensors"
            )
        inputs = dict(zip(names, inputs, strict=False))
    if not isinstance(inputs, Mapping) or not inputs:
        raise PosexportError(f"{argument}: inputs must map names to tensors, got {type(inputs).__name__}")
    for name, tensor in inputs.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise PosexportError(f"{argument}: inputs must map names to tensors, got {name!r}: {type(tensor).__name__}")
        if not name.isidentifier() or iskeyword(name) or name == "self":
            raise PosexportError(f"{argument}: input {name!r} cannot be the name of an argument of forward")
    return {name: tensor.detach().cpu() for name, tensor in inputs.items()}


def _specs(argument: str, module: nn.Module, tensors: Mapping[str, Tensor], axes: Any = None) -> list[InputSpec]:
    if not tensors:
        declared = getattr(module, "inputs", None)
        if isinstance(declared, list) and all(isinstance(spec, InputSpec) for spec in declared):
            return declared
        raise PosexportError(
            f"{argument} returned a module alone, and posexport cannot tell its inputs: "
            "return (module, {'input_ids': example, ...}) with an example tensor for every argument of forward"
        )
    axes = {} if axes is None else axes
    if not isinstance(axes, Mapping):
        raise PosexportError(f"{argument}: axes must map names of inputs to lists, got {type(axes).__name__}")
    unknown = set(axes) - set(tensors)
    if unknown:
        raise PosexportError(
            f"{argument}: axes name {sorted(unknown)}, which is not among the inputs {sorted(tensors)}"
        )
    return [_spec(name, tensor, axes.get(name)) for name, tensor in tensors.items()]


def _spec(name: str, tensor: Tensor, axes: list[Axis] | None) -> InputSpec:
    named: list[Axis] = [BATCH, SEQUENCE]
    shape = list(axes) if axes is not None else [*named[: tensor.dim()], *tensor.shape[2:]]
    if isinstance(axes, str) or not all(_is_axis(axis) for axis in shape):
        raise PosexportError(
            f"input {name} has the axes {axes!r}; give a list of names like {BATCH} and whole numbers from 1 on"
        )
    if len(shape) != tensor.dim():
        raise PosexportError(f"input {name} has {tensor.dim()} axes, {len(shape)} are named: {shape}")
    strange = [axis for axis in shape if isinstance(axis, str) and axis not in _AXES]
    if strange:
        raise PosexportError(
            f"input {name} has an axis {strange[0]!r}: call it {_better_name(strange[0])}, or give its size as a "
            f"number (known names: {', '.join(_AXES)})"
        )
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise PosexportError(
            f"input {name} is {tensor.dtype}; a bundle takes int64 and float32, so convert it in the module's forward"
        )
    if tensor.is_floating_point():
        return InputSpec(name=name, dtype="float32", axes=shape, role="values")
    if "mask" in name:
        return InputSpec(name=name, dtype="int64", axes=shape, role="mask")
    if tensor.numel() == 0 or int(tensor.min()) < 0:
        raise PosexportError(f"input {name}: the example must hold ids from 0 on, got shape {list(tensor.shape)}")
    # the only bound an example can give: what it holds is in range
    return InputSpec(name=name, dtype="int64", axes=shape, role="tokens", size=int(tensor.max()) + 1)


def _is_axis(axis: object) -> bool:
    return axis.isidentifier() if isinstance(axis, str) else type(axis) is int and axis >= 1


def _better_name(axis: str) -> str:
    """What an axis that has another name is meant to be, most likely."""
    lower = axis.lower()
    if any(word in lower for word in ("enc", "mem", "source", "src", "key", "cross")):
        return ENCODER_SEQUENCE
    return BATCH if lower in ("b", "n", "bs", "bsz") or "batch" in lower else SEQUENCE
