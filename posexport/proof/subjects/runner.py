"""Runs a model's graphs in ONNX Runtime: a sequence in one call, or in several that continue the KV cache.

An encoder runs once for all calls of its decoder: Whisper's reads 30 seconds of sound whatever the decoder does; in
float64 that takes seconds, and a proof makes thousands of the decoder's calls. Imports no torch.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import (
    CAPACITY,
    CARRIED,
    FIXED_SHAPE_STEPS,
    NUM_LOGITS,
    SEQUENCE,
    TOTAL,
    InputSpec,
    Interface,
    OutputSpec,
    PartSpec,
    carried,
)
from posexport.base.system.freed_memory import trim
from posexport.base.targets.dtypes import BY_ORT_TYPE, DType
from posexport.base.targets.providers import DEFAULT_PROVIDER, provider_named
from posexport.errors import PosexportError
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds
from posexport.proof.grid.point import BATCHES
from posexport.proof.subjects.on_demand import OnDemand, one_at_a_time
from posexport.run.cache import Cache, DecoderInterface
from posexport.run.chain import Chain, open_chain
from posexport.run.ort_values import run
from posexport.run.providers import bundle_session
from posexport.run.wrapped_session import WrappedSession

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


#: results of a graph before the decoder: what it reads is the same at all points of a batch size
OF_BATCHES = len(BATCHES)
#: bytes of results above which the last one alone is kept
ROOM = 1 << 28


class Remembered:
    """``run`` with its last results cached, by the inputs.

    ``most``: results in memory at a time, but one of large ones; ``largest``: bytes above which a result is not kept.
    """

    def __init__(self, run: Callable[..., Any], most: int = 1, largest: float = math.inf) -> None:
        self._run, self._most, self._largest = run, most, largest
        self._found: dict[bytes, Any] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The answer for these arguments."""
        key = digest((*args, named))
        if key not in self._found:
            while len(self._found) >= self._most or _bytes(list(self._found.values())) > ROOM:
                del self._found[next(iter(self._found))]
            answer = self._run(*args, **named)
            if _bytes(answer) > self._largest:
                return answer
            self._found[key] = answer
        return self._found[key]


class RememberingSession(WrappedSession):
    """A session that caches its last results, by the inputs; `posexport.run.ort_values.run` calls it."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._options: Any = None
        self._remembered = Remembered(lambda names, arrays: run(session, names, arrays, self._options), OF_BATCHES)

    def run_arrays(self, names: Sequence[str], arrays: Mapping[str, Any], options: Any = None) -> Any:
        self._options = options  # of how it is computed, not of what
        return self._remembered(list(names), arrays)


def _bytes(value: Any) -> int:
    """Bytes of the arrays and tensors in lists and tuples."""
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return int(getattr(value, "nbytes", 0))


def digest(value: Any) -> bytes:
    """Equal for equal arrays, tensors, texts and containers of them."""
    hashed = hashlib.blake2b()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for name in value:
                hashed.update(repr(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        elif value is None or isinstance(value, str):
            hashed.update(repr(value).encode())
        else:
            # NumPy has no bfloat16; float32 holds every value of it
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":
                value = value.float()
            array = np.ascontiguousarray(value.cpu() if hasattr(value, "cpu") else value)
            hashed.update(repr((array.shape, array.dtype.str)).encode())
            hashed.update(array.reshape(-1).view(np.uint8).data)  # ml_dtypes' have no buffer

    add(value)
    return hashed.digest()


Run = Callable[[Feeds], list[Array]]


def in_calls(run: Run, feeds: Feeds, model: Interface, calls: Sequence[int]) -> list[Array]:
    """The `compared_outputs` of a whole sequence (``feeds``, with an empty past), in calls of ``calls`` new tokens.

    Outputs with an axis of new tokens are concatenated; caches are the last call's, without unused slots. Before every
    call the unused slots of static KV caches are reset to those in ``feeds``: programs may change them or not. No
    ``calls``: one call.
    """
    inputs, outputs = model.inputs, model.outputs
    if not calls:
        axes = ((spec.name, spec.axes.index(TOTAL)) for spec in inputs if TOTAL in spec.axes)
        total = next((feeds[name].shape[axis] for name, axis in axes), 0)
        return _taken(run(feeds), outputs, total)
    # every call gets its new tokens, the mask up to them and the caches that the call before returned
    held = {spec.name: feeds[spec.name] for spec in inputs if spec.role in CARRIED}
    kept = carried(inputs, outputs)
    parts: list[list[Array]] = []
    end = 0
    for new in calls:
        start, end = end, end + new
        call_feeds = {}
        for spec in inputs:
            array = feeds[spec.name]
            if SEQUENCE in spec.axes:
                array = np.take(array, range(start, end), axis=spec.axes.index(SEQUENCE))
            elif TOTAL in spec.axes:
                array = np.take(array, range(end), axis=spec.axes.index(TOTAL))
            call_feeds[spec.name] = _refilled(held[spec.name], array, spec, start) if spec.name in held else array
        parts.append(run(call_feeds))
        presents = [y for y, spec in zip(parts[-1], outputs, strict=True) if spec in kept]
        held = dict(zip(held, presents, strict=True))
    # outputs for new tokens are concatenated; caches are the last call's
    columns = list(zip(*parts, strict=True))
    joined = [
        np.concatenate([_with_later(y, spec, end) for y in column], spec.axes.index(SEQUENCE))
        if SEQUENCE in spec.axes
        else column[-1]
        for column, spec in zip(columns, outputs, strict=True)
    ]
    return _taken(joined, outputs, end)


def whole(run: Run, model: Interface) -> Run:
    """``run`` for a sequence in one call, its caches without unused slots."""
    return partial(in_calls, run, model=model, calls=())


def _with_later(y: Array, spec: OutputSpec, total: int) -> Array:
    """Probabilities of a call with those of later keys, which are zero."""
    if TOTAL not in spec.axes:
        return y
    more = [(0, total - size if axis == TOTAL else 0) for size, axis in zip(y.shape, spec.axes, strict=True)]
    return np.pad(y, more)


def _refilled(cache: Array, first: Array, spec: InputSpec, used: int) -> Array:
    """``cache`` with the slots of ``first`` from ``used`` on."""
    if CAPACITY not in spec.axes or not used:
        return cache
    axis = spec.axes.index(CAPACITY)
    unused = range(used, first.shape[axis])
    return np.concatenate((np.take(cache, range(used), axis=axis), np.take(first, unused, axis=axis)), axis)


def _taken(tensors: Sequence[Array], outputs: Sequence[OutputSpec], total: int) -> list[Array]:
    return [
        np.take(y, range(total), axis=spec.axes.index(CAPACITY)) if CAPACITY in spec.axes else y
        for y, spec in zip(tensors, outputs, strict=True)
        if spec.compared
    ]


#: opens a session of a file
Make = Callable[[Path | bytes], "InferenceSession"]


class RunError(Exception):
    """ONNX Runtime raised: its message, on one line."""


def typed(feeds: Feeds, types: Mapping[str, str], provider: str) -> Feeds:
    """The arrays in the types that a model declares, by ONNX Runtime's names.

    Unused slots of a static KV cache may hold NaN and infinities: finite values in their place where ``provider`` needs
    them.
    """
    dtypes = {name: BY_ORT_TYPE[types[name]] for name in feeds if types[name] in BY_ORT_TYPE}
    if provider_named(provider).finite_slots:
        feeds = {name: _finite(array, dtypes[name]) if name in dtypes else array for name, array in feeds.items()}
    with np.errstate(over="ignore"):  # values beyond float16 in unused slots become infinite
        return {
            name: np.asarray(array, dtype=dtypes[name].name if name in dtypes else None)
            for name, array in feeds.items()
        }


def _finite(array: Array, dtype: DType) -> Array:
    """``array`` without NaN, and within the range of ``dtype`` if that is a floating-point type."""
    if not dtype.eps:
        return array
    largest = float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
    return np.nan_to_num(array, nan=1.0).clip(-largest, largest)


@dataclass(frozen=True)
class Opened:
    """Runs the graphs of an open session for ``outputs``."""

    chain: Chain
    outputs: Sequence[str]
    provider: str = DEFAULT_PROVIDER

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs; RunError with ONNX Runtime's message."""
        try:
            return self.chain.run(self.outputs, typed(feeds, self.chain.types, self.provider))
        except MemoryError:
            raise
        except Exception as err:  # onnxruntime's exceptions share no base class
            raise RunError(" ".join(str(err).split())) from err


class Runner:
    """Runs a model with inputs and outputs by name. ``parts``: ``model`` is the directory of their files.

    ``make`` opens the sessions, where they are not to be plain ones. ``prepacking``: as of `make_session`.
    Raises PosexportError if the model's inputs or outputs are not the requested ones.
    """

    def __init__(
        self,
        model: Path | bytes,
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        parts: Sequence[PartSpec] = (),
        provider: str = DEFAULT_PROVIDER,
        threads: int = 0,
        level: str = "all",
        make: Make | None = None,
        prepacking: bool = True,
        provider_options: Mapping[str, Any] | None = None,
    ) -> None:
        import onnxruntime

        # PyTorch runs in turn with it: threads that wait busily would take its processors
        make = make or partial(
            bundle_session,
            provider=provider,
            threads=threads,
            level=level,
            spinning=False,
            prepacking=prepacking,
            provider_options=provider_options,
        )
        self._on_demand: list[OnDemand] = []
        make = one_at_a_time(model, parts, make, self._on_demand, prepacking=prepacking)
        self.chain = open_chain(model, parts, make)
        *before, last = self.chain.links
        self.chain = Chain([*(replace(link, session=RememberingSession(link.session)) for link in before), last])
        self.outputs = list(outputs)
        self.types, self._provider = self.chain.types, provider
        self._check(set(inputs))
        self._options = onnxruntime.RunOptions()
        # a refusal is part of the proof: it is reported, not logged
        self._options.log_severity_level = 4
        # the memory of a long point is released
        self._options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    @classmethod
    def of(cls, source: Interface, model: Path | bytes, parts: Sequence[PartSpec] = (), **options: Any) -> Self:
        """A runner of ``model`` with the names of ``source``; ``options``: of the class."""
        inputs, outputs = ([spec.name for spec in specs] for specs in (source.inputs, source.outputs))
        return cls(model, inputs=inputs, outputs=outputs, parts=parts, **options)

    def release(self) -> None:
        """Give the memory of a large model's sessions back until the next call."""
        for session in self._on_demand:
            session.close()

    def _check(self, inputs: set[str]) -> None:
        """Checks that the model has exactly the requested inputs and outputs."""
        _same("inputs", inputs, set(self.types) - {NUM_LOGITS})
        _same("outputs", set(self.outputs), self.chain.outputs)

    def feeds(self, feeds: Feeds) -> Feeds:
        """The arrays in the types that the model declares."""
        return typed(feeds, self.types, self._provider)

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs in the requested order; raises RunError with ONNX Runtime's message."""
        try:
            outputs: list[Array] = self.chain.run(self.outputs, self.feeds(feeds), self._options)
        except MemoryError:
            raise
        except Exception as err:  # onnxruntime's exceptions share no base class
            raise RunError(" ".join(str(err).split())) from err
        if self._on_demand:
            trim()
        return outputs

    @property
    def has_fixed_shape_steps(self) -> bool:
        """Whether the mask of a step may be as wide as the static KV cache."""
        return FIXED_SHAPE_STEPS in self.chain.links[-1].session.get_modelmeta().custom_metadata_map

    def cache(
        self, of: DecoderInterface, *, rows: int, room: int, fixed: Mapping[str, NDArray[Any]] | None, provider: str
    ) -> Cache:
        """An empty cache of the model, as `posexport.run.generate.loop` asks for it, in the types that it declares."""
        past = [msgspec.structs.replace(spec, dtype=BY_ORT_TYPE[self.types[spec.name]].name) for spec in of.past]
        return Cache(self.chain, replace(of, past=past), rows=rows, room=room, fixed=fixed, provider=provider)


def _same(kind: str, expected: set[str], actual: set[str]) -> None:
    if expected == actual:
        return
    lacks, extra = sorted(expected - actual), sorted(actual - expected)
    parts = [f"lacks {', '.join(lacks)}"] if lacks else []
    parts += [f"has {', '.join(extra)} that the source does not know"] if extra else []
    raise PosexportError(
        f"the model's {kind} are not the source's: it {' and '.join(parts)}; verify it against its own source"
    )
