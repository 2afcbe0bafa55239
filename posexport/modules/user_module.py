"""A module of the user's own, called so that whatever it does wrong is one sentence.

`UserModule` stands between posexport and the module: it calls it by keyword, turns its answer into a tuple of tensors,
and checks that the tensors have the axes that were declared. An exception of the module becomes a PosexportError that
names the exception, the sizes, the likely line, and the longest input that was taken before.
"""

import copy
import dataclasses
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CellType, FrameType, FunctionType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.recognise import entered
from posexport.spec import BATCH, SEQUENCE, InputSpec, OutputSpec
from posexport.torch_fixes.named_dtype import computing_in
from posexport.torch_fixes.no_fast_path import no_fast_path

_M = TypeVar("_M", bound=nn.Module)
#: characters of a library's message that are quoted
_QUOTED = 300
#: what an example is told that holds past keys and values
PAST_IS_OURS = (
    "leave it out, and let forward take None for it: past keys and values are posexport's, which gives a decoder a KV "
    "cache"
)
_CACHE_IS_OURS = (
    "; a model of transformers alone, without an example, gets a KV cache of posexport's; in a module that calls one, "
    "set its config.use_cache = False"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class UserModule(nn.Module):
    """``module``, called by keyword with ``inputs``' names, its answer as a tuple in the order of ``outputs``.

    To be subclassed for every module (`by_name`): ``forward``'s signature and ``taken`` belong to the class, so that
    copies share them.
    """

    #: (in float64, sizes of the inputs) that the module took; copies add to the same set
    taken: ClassVar[set[tuple[bool, tuple[tuple[str, int], ...]]]]
    #: of every attention by a function of PyTorch's: None where the trace has a node of ours, else why not
    attentions: ClassVar[list[str | None]]

    def __init__(
        self, argument: str, module: nn.Module, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
    ) -> None:
        super().__init__()
        self.argument, self.inputs, self.outputs = argument, inputs, outputs
        #: names of what the module returns and nobody asks for
        self.left_out: set[str] = set()
        self.module = module

    def forward(self, **tensors: Tensor) -> tuple[Tensor, ...]:
        if torch.compiler.is_dynamo_compiling():  # the exporter's second try, which follows Python code, not modes
            return tuple(self._asked(self.module(**tensors)).values())
        if torch.compiler.is_compiling():  # the tracer has its own way to say what it cannot follow
            with no_fast_path(), entered.traced() as seen:
                traced = tuple(self._asked(self.module(**tensors)).values())
            self.attentions[:] = seen.reasons
            return traced
        sizes = sizes_of(self.inputs, tensors)
        try:
            # a module may write to its inputs: those are posexport's
            with computing_in(torch.float64 if self._wide() else torch.float32), no_fast_path(), entered.called():
                answer = self._asked(self.module(**{name: tensor.clone() for name, tensor in tensors.items()}))
        except BaseException as err:
            raise self._failed(err, sizes) from err
        self._check(answer, sizes)
        self.taken.add((self._wide(), tuple(sizes.items())))
        return tuple(answer.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> "UserModule":
        other = copy.copy(self)
        memo[id(self)] = other
        other.__dict__ = copy.deepcopy(self.__dict__, memo)
        return _with_own_functions(other, memo)

    def _wide(self) -> bool:
        """Whether this is the copy that the reference is computed with."""
        parameter = next(self.module.parameters(), None)
        return parameter is not None and parameter.dtype == torch.float64

    def _asked(self, answer: Any) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in named_outputs(answer).items() if name not in self.left_out}

    def _failed(self, err: BaseException, sizes: dict[str, int]) -> BaseException:
        if not_the_module_s(err):
            return err
        if isinstance(err, PosexportError):
            return PosexportError(f"{self.argument}: {err}")
        line, wide, key = likely_line(err), self._wide(), tuple(sizes.items())
        said = f"{self.argument}: the module raised {raised(err)} at {at(sizes)}" + (f" ({line})" if line else "")
        if wide and ((False, key) in self.taken or not any(double for double, _ in self.taken)):
            return PosexportError(
                f"{said} in float64, the precision of the reference; use the dtype of the input or of a weight, "
                "x.dtype, where it names one"
            )
        if (wide, key) in self.taken:
            return PosexportError(f"{said}, and took other values of the same sizes; it must take them all")
        if past := [spec.name for spec in self.inputs if looks_past(spec)]:
            return PosexportError(f"{said}; the example has {', '.join(past)}: {PAST_IS_OURS}")
        length = sizes.get(SEQUENCE)
        longest = max((dict(taken).get(SEQUENCE, 0) for _, taken in self.taken), default=0)
        if length is not None and 0 < longest < length:
            return PosexportError(
                f"{said}, and took {longest}. If that is its limit, convert with --max-length {longest}."
            )
        return PosexportError(f"{said}; it must take every batch size, and every length up to its limit")

    def _check(self, answer: Mapping[str, Tensor], sizes: Mapping[str, int]) -> None:
        """The names and axes of what came out are the declared ones."""
        names = [spec.name for spec in self.outputs]
        if list(answer) != names:
            raise PosexportError(
                f"{self.argument}: the module returned the outputs {list(answer)} at {at(sizes)}, and {names} before; "
                "it must return the same ones for every input"
            )
        for spec in self.outputs:
            expected = [sizes.get(axis) if isinstance(axis, str) else axis for axis in spec.axes]
            got = list(answer[spec.name].shape)
            if len(got) != len(expected) or any(w not in (None, g) for w, g in zip(expected, got, strict=True)):
                raise PosexportError(
                    f"{self.argument}: output {spec.name} has the shape {got} at {at(sizes)}, and {expected} was "
                    "expected: its shape depends on the values of the inputs, not on their sizes alone; posexport "
                    "cannot tell which tokens it keeps"
                )


def by_name(argument: str, module: nn.Module, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> UserModule:
    """``module`` as a `UserModule` whose ``forward`` has ``inputs``' names as parameters, as torch.export wants it."""

    class ByName(UserModule):
        taken: ClassVar = set()
        attentions: ClassVar = []

        def forward(self, **tensors: Tensor) -> tuple[Tensor, ...]:
            return super().forward(**tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *(spec.name for spec in inputs))]
    ByName.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return ByName(argument, module, inputs, outputs).eval()


def returning(user: UserModule, outputs: Sequence[OutputSpec]) -> UserModule:
    """The same module and weights, called so that it returns ``outputs``: some of its own, or with other axes."""
    other = copy.copy(user)
    other.left_out = user.left_out | ({spec.name for spec in user.outputs} - {spec.name for spec in outputs})
    other.outputs = outputs
    return other


def named_outputs(answer: Any) -> dict[str, Tensor]:
    """What a module returns, as names and tensors: nested containers are flattened, ``None`` is left out.

    The tensor in ``{"layers": (x, y)}`` is called ``layers.0``, that of a lone tensor ``output``, and those of a tuple
    ``output_0``, ``output_1``.
    """
    if isinstance(answer, Tensor):
        return {"output": answer}
    outputs: dict[str, Tensor] = {}
    prefix = "output_" if isinstance(answer, tuple | list) and not hasattr(answer, "_fields") else ""
    for path, value in _leaves(answer, ""):
        name = prefix + path
        if not isinstance(value, Tensor):
            is_cache = type(value).__module__ == "transformers.cache_utils"
            raise PosexportError(
                f"the module must return tensors, alone or in tuples, dicts and dataclasses, got {type(value).__name__}"
                + (f" as {name}" if path else "")
                + (_CACHE_IS_OURS if is_cache else "")
            )
        if name in outputs:
            raise PosexportError(f"the module returned two outputs that are both called {name}; rename one")
        outputs[name] = value
    if not outputs:
        raise PosexportError(f"the module must return at least one tensor, got {type(answer).__name__} without any")
    return outputs


def _leaves(answer: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What is in nested containers and is none, but ``None``, with the keys that lead to it."""
    items: Any
    if isinstance(answer, Mapping):
        items = answer.items()
    elif isinstance(answer, tuple | list):
        items = zip(getattr(answer, "_fields", range(len(answer))), answer, strict=True)
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        items = ((field.name, getattr(answer, field.name)) for field in dataclasses.fields(answer))
    else:
        if answer is not None or not path:
            yield path, answer
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}" if path else str(key))


def looks_past(spec: InputSpec) -> bool:
    """Whether an input is called as past keys and values are, and has their axes."""
    return spec.role == "values" and len(spec.axes) > 3 and any(word in spec.name for word in ("past", "cache"))


def sizes_of(inputs: Sequence[InputSpec], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The size of every named axis."""
    return {
        axis: size
        for spec in inputs
        for axis, size in zip(spec.axes, tensors[spec.name].shape, strict=True)
        if isinstance(axis, str)
    }


def at(sizes: Mapping[str, int]) -> str:
    """Sizes in words."""
    words = {SEQUENCE: "length", BATCH: "batch"}
    order = sorted(sizes, key=lambda axis: (axis != SEQUENCE, axis != BATCH))
    return ", ".join(f"{words.get(axis, axis)} {sizes[axis]}" for axis in order) or "fixed sizes"


def raised(err: BaseException) -> str:
    """An exception as the user wrote it: ``ValueError('too long')``."""
    text = quoted(err)
    return f"{type(err).__name__}({text!r})" if text else type(err).__name__


def quoted(err: BaseException) -> str:
    """An exception's message on one line, cut where it is long."""
    try:
        text = " ".join(str(err).split())
    except Exception:  # noqa: BLE001 (its __str__ is the user's as well)
        return ""
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " ..."


def not_the_module_s(err: BaseException) -> bool:
    """Whether an exception is the machine's (no memory, a signal) or Ctrl-C's, not the module's."""
    if isinstance(err, SystemExit):  # a signal's number is in it
        return isinstance(err.code, int) and err.code > 128
    return isinstance(err, KeyboardInterrupt | MemoryError) or "can't allocate memory" in raised(err)


def copied(argument: str, module: _M, why: str = "the proof needs copies of it in two precisions") -> _M:
    """A copy of a user's module; PosexportError where it has none, ``why`` saying what it is needed for."""
    try:
        memo: dict[int, Any] = {}
        return _with_own_functions(copy.deepcopy(module, memo), memo)
    except Exception as err:
        if not_the_module_s(err):
            raise
        raise PosexportError(
            f"{argument}: the module cannot be copied, and {why}: copy.deepcopy raised {raised(err)}"
        ) from err


def _with_own_functions(module: _M, memo: dict[int, Any]) -> _M:
    """``module``, whose attributes that are functions of forward's take what ``memo`` has copied, as copy does not.

    Such as ``self.feed = lambda x: proj(x)``, which would go on with the parts of the module that was copied.
    """
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, FunctionType) and value.__closure__:
                vars(part)[name] = _closed_over(value, memo)
    return module


def _closed_over(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """The same function, of copies of what it closes over."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    cells = tuple(CellType(memo.get(id(value), value)) for value in held)
    same = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    same.__kwdefaults__ = function.__kwdefaults__
    return same


def in_precision(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """``module``, changed in place to ``dtype``; what is complex stays so, with as many bits.

    Parameters that a part names in ``position_parameters`` are never narrower than float32: angles are made of them.
    """
    exact = {
        (part, name): getattr(part, name).detach().clone()
        for part in module.modules()
        for name in getattr(part, "position_parameters", ())
        if dtype.itemsize < torch.float32.itemsize
    }
    tensors = {
        (part, name): value
        for part in module.modules()
        for name, value in part.named_buffers(recurse=False)
        if value.is_complex()
    }
    for part, name in tensors:
        del part._buffers[name]  # noqa: SLF001 (as nn.Module.to would set it)
    module = module.to(dtype)
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64
    for (part, name), value in tensors.items():
        part._buffers[name] = value.to(wide)  # noqa: SLF001
    for (part, name), value in exact.items():
        setattr(part, name, nn.Parameter(value, requires_grad=False))
    return module


def likely_line(err: BaseException) -> str:
    """The innermost line outside of libraries that an exception passed: ``model.py line 12: `x + bias```; or nothing.

    Frames of libraries are those below a folder of packages, and posexport's own.
    """
    seen: list[BaseException] = []
    current: BaseException | None = err
    line = ""
    while current is not None and current not in seen:
        seen.append(current)
        trace = current.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if is_user_s(code.co_filename):
                line = line_of(code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        current = current.__cause__ or current.__context__
    return line


def is_user_s(filename: str) -> bool:
    """Whether a file is no part of Python or of an installed package, and none of posexport."""
    path = Path(filename)
    if filename.startswith("<") or not path.is_file():
        return False
    ours = Path(__file__).resolve().parent.parent
    standard = Path(linecache.__file__).resolve().parent
    resolved = path.resolve()
    if resolved.is_relative_to(ours) or {"site-packages", "dist-packages"} & set(resolved.parts):
        return False
    return not resolved.is_relative_to(standard)


def line_of(filename: str, number: int) -> str:
    """A line of the user's file as a person would cite it."""
    text = linecache.getline(filename, number).strip()
    return f"{Path(filename).name} line {number}" + (f": `{text}`" if text else "")


def calling_line(frame: FrameType | None) -> str:
    """The innermost line outside of libraries of a call that is being made; nothing where there is none."""
    while frame is not None and not is_user_s(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else line_of(frame.f_code.co_filename, frame.f_lineno)


def noted_line(stack: str) -> str:
    """The innermost line outside of libraries in a stack that PyTorch noted as text."""
    users = [(file, int(number)) for file, number in _FRAME.findall(stack) if is_user_s(file)]
    return line_of(*users[-1]) if users else ""
