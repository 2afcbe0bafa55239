"""A module of the user's own, called so that whatever it does wrong is one sentence.

`UserModule` stands between posexport and the module: it calls it by keyword, turns its answer into a tuple of tensors,
and checks that the tensors have the axes that were declared. An exception of the module becomes a PosexportError that
names the exception, the sizes, the likely line, and the longest input that was taken before.
"""

import copy
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.recognise import entered
from posexport.sources.traced_module import TracedModule
from posexport.spec import BATCH, SEQUENCE, InputSpec, OutputSpec
from posexport.system.user_code import is_external, line_of_error, raised
from posexport.torch_fixes.as_exported import as_exported
from posexport.torch_fixes.default_dtype import computing_in

_M = TypeVar("_M", bound=nn.Module)
_TWO_PRECISIONS = "the proof needs copies of it in two precisions"
#: what an example is told that holds past keys and values
PAST_IS_OURS = (
    "leave it out, and let forward take None for it: past keys and values are posexport's, which gives a decoder a KV "
    "cache"
)
_CACHE_IS_OURS = (
    "; a model of transformers alone, without an example, gets a KV cache of posexport's; in a module that calls one, "
    "set its config.use_cache = False"
)


class UserModule(TracedModule):
    """``module``, called by keyword with ``inputs``' names, its answer as a tuple in the order of ``outputs``.

    To be subclassed for every module (`by_name`): ``forward``'s signature and ``taken`` belong to the class, so that
    copies share them.
    """

    #: (in float64, sizes of the inputs) that the module took; copies add to the same set
    taken: ClassVar[set[tuple[bool, tuple[tuple[str, int], ...]]]]

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
            with as_exported(), entered.traced() as seen:
                traced = tuple(self._asked(self.module(**tensors)).values())
            self.attentions[:] = seen.reasons
            return traced
        sizes = sizes_of(self.inputs, tensors)
        try:
            # a module may write to its inputs: those are posexport's
            with computing_in(torch.float64 if self._wide() else torch.float32), as_exported(), entered.called():
                answer = self._asked(self.module(**{name: tensor.clone() for name, tensor in tensors.items()}))
        except BaseException as err:
            raise self._failed(err, sizes) from err
        self._check(answer, sizes)
        self.taken.add((self._wide(), tuple(sizes.items())))
        return tuple(answer.values())

    def __deepcopy__(self, memo: dict[int, Any]) -> "UserModule":
        other = copy.copy(self)
        memo[id(self)] = other
        with _copying(self.argument):
            other.__dict__ = copy.deepcopy(self.__dict__, memo)
            return _with_own_functions(other, memo)

    def _wide(self) -> bool:
        """Whether this is the copy that the reference is computed with."""
        parameter = next(self.module.parameters(), None)
        return parameter is not None and parameter.dtype == torch.float64

    def _asked(self, answer: Any) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in named_outputs(answer).items() if name not in self.left_out}

    def _failed(self, err: BaseException, sizes: dict[str, int]) -> BaseException:
        if is_external(err):
            return err
        if isinstance(err, PosexportError):
            return PosexportError(f"{self.argument}: {err}")
        line, wide, key = line_of_error(err), self._wide(), tuple(sizes.items())
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


def copied(argument: str, module: _M, why: str = _TWO_PRECISIONS) -> _M:
    """A copy of a user's module.

    Raises:
        PosexportError: it cannot be copied; ``why`` says what the copy is for.
    """
    memo: dict[int, Any] = {}
    with _copying(argument, why):
        return _with_own_functions(copy.deepcopy(module, memo), memo)


@contextmanager
def _copying(argument: str, why: str = _TWO_PRECISIONS) -> Iterator[None]:
    """Errors of ``copy.deepcopy`` inside the block as one sentence."""
    try:
        yield
    except Exception as err:
        if is_external(err) or isinstance(err, PosexportError):
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
