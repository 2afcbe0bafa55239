"""``path/to/file.py:factory``: a module of the user's own.

The factory takes no arguments and returns the module alone, ``(module, inputs)`` or ``(module, inputs, axes)``:
``inputs`` maps the names of ``forward``'s arguments to example tensors, ``axes`` maps an input's name to its axes'
names, ``{"x": ["batch_size", "sequence_length", 16]}``. A module with an attribute ``inputs`` (a list of `InputSpec`,
as posexport's own definitions have) needs neither.

The file is executed: it is run only because the user named it.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posexport.encodings.base import Encoding
from posexport.errors import PosexportError
from posexport.models.envelope import envelope_of_module
from posexport.sources.base import Source
from posexport.sources.example import axis_sizes, example
from posexport.sources.weights import digest
from posexport.spec import BATCH, SEQUENCE, Axis, EncodingSpec, InputSpec, OutputSpec


def by_name(module: nn.Module, inputs: list[InputSpec]) -> nn.Module:
    """The module, called by keyword with its inputs' names, its answer, whatever its form, as a tuple of tensors."""

    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, **given: Tensor) -> tuple[Tensor, ...]:
            return tuple(named_outputs(self.module(**given)).values())

    # torch.export wants every input to be a parameter of its own
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *(spec.name for spec in inputs))]
    ByName.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return ByName().eval()


def named_outputs(answer: Any) -> dict[str, Tensor]:
    """A tensor, a tuple or a mapping of tensors, as names and tensors; entries that are None are left out."""
    if isinstance(answer, Tensor):
        return {"output": answer}
    if isinstance(answer, Mapping):
        found = {str(name): value for name, value in answer.items() if value is not None}
    elif isinstance(answer, tuple | list):
        found = {f"output_{i}": value for i, value in enumerate(answer) if value is not None}
    else:
        found = {}
    if not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise PosexportError(
            f"the module must return a tensor, a tuple or a dict of tensors, got {type(answer).__name__}"
        )
    return found


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
    module = parts[0].eval().float()
    inputs = _specs(argument, module, *parts[1:])
    envelope = envelope_of_module(module)
    outputs, names = _outputs(argument, module, inputs, envelope.limit)
    encodings = [m for m in module.modules() if isinstance(m, Encoding)]
    first = encodings[0] if encodings else None
    return Source(
        name=argument,
        label=f"{path.name}:{factory_name}",
        kind="python",
        module=by_name(module, inputs),
        inputs=inputs,
        outputs=[OutputSpec(name=name, axes=axes) for name, axes in zip(names, outputs, strict=True)],
        envelope=envelope,
        encoding=None if first is None else EncodingSpec(name=first.name, parameters=dict(first.parameters_given)),
        task="features",
        sha256=hashlib.sha256(path.read_bytes() + digest(module).encode()).hexdigest(),
        padding_invariant=False,
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
        if not callable(factory):
            names = [name for name, value in vars(namespace).items() if callable(value) and not name.startswith("_")]
            raise PosexportError(f"{path} has no factory {factory_name!r}; it has {', '.join(names) or 'none'}")
        return factory()
    except PosexportError:
        raise
    except (Exception, SystemExit) as err:  # a file that exits must not end the command as if all were well
        raise PosexportError(f"{path}:{factory_name} failed: {type(err).__name__}: {err}") from err
    finally:
        sys.path.remove(str(path.parent.resolve()))


def _specs(argument: str, module: nn.Module, inputs: Any = None, axes: Any = None) -> list[InputSpec]:
    declared = getattr(module, "inputs", None)
    if inputs is None:
        if isinstance(declared, list) and all(isinstance(spec, InputSpec) for spec in declared):
            return declared
        raise PosexportError(
            f"{argument} returned a module alone, and posexport cannot tell its inputs: "
            "return (module, {'input_ids': example, ...}) with an example tensor for every argument of forward"
        )
    if not isinstance(inputs, Mapping) or not inputs:
        raise PosexportError(f"{argument}: inputs must map names to tensors, got {type(inputs).__name__}")
    for name, tensor in inputs.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise PosexportError(f"{argument}: inputs must map names to tensors, got {name!r}: {type(tensor).__name__}")
    axes = {} if axes is None else axes
    if not isinstance(axes, Mapping):
        raise PosexportError(f"{argument}: axes must map names of inputs to lists, got {type(axes).__name__}")
    unknown = set(axes) - set(inputs)
    if unknown:
        raise PosexportError(f"{argument}: axes name {sorted(unknown)}, which is not among the inputs {sorted(inputs)}")
    return [_spec(name, tensor, axes.get(name)) for name, tensor in inputs.items()]


def _spec(name: str, tensor: Tensor, axes: list[Axis] | None) -> InputSpec:
    named: list[Axis] = [BATCH, SEQUENCE]
    shape = list(axes) if axes is not None else [*named[: tensor.dim()], *tensor.shape[2:]]
    if isinstance(axes, str) or not all(_is_axis(axis) for axis in shape):
        raise PosexportError(
            f"input {name} has the axes {axes!r}; give a list of names like {BATCH} and whole numbers from 1 on"
        )
    if len(shape) != tensor.dim():
        raise PosexportError(f"input {name} has {tensor.dim()} axes, {len(shape)} are named: {shape}")
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


def _outputs(
    argument: str, module: nn.Module, inputs: list[InputSpec], limit: int | None
) -> tuple[list[list[Axis]], list[str]]:
    """Run twice at different sizes: an output's axis is the named one it varies with."""
    first = axis_sizes(inputs)
    second = {name: size + 4 for name, size in first.items()}
    if limit is not None and SEQUENCE in first:
        second[SEQUENCE] = min(second[SEQUENCE], limit)
        first[SEQUENCE] = min(first[SEQUENCE], max(1, limit - 1))
    answers = []
    for sizes in (first, second):
        try:
            with torch.no_grad():
                answers.append(named_outputs(module(**example(inputs, sizes))))
        except PosexportError:
            raise
        except (Exception, SystemExit) as err:
            raise PosexportError(
                f"{argument}: the module failed at sizes {sizes}: {type(err).__name__}: {err}"
            ) from err
    ranks = [{name: tensor.dim() for name, tensor in answer.items()} for answer in answers]
    if ranks[0] != ranks[1]:
        raise PosexportError(
            f"{argument}: the module gives outputs with other names or numbers of axes, {ranks[0]} and {ranks[1]}, "
            f"at sizes {first} and {second}; they must not depend on sizes"
        )
    found: list[list[Axis]] = []
    for name, tensor in answers[0].items():
        axes: list[Axis] = []
        for a, b in zip(tensor.shape, answers[1][name].shape, strict=True):
            match = [axis for axis in first if (first[axis], second[axis]) == (a, b)]
            if a != b and not match:
                raise PosexportError(
                    f"{argument}: output {name} has an axis of {a}, then {b}, at sizes {first}, {second}"
                )
            axes.append(match[0] if match and a != b else int(a))
        found.append(axes)
    return found, list(answers[0])
