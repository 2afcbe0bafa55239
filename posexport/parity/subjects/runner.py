"""The model as ONNX Runtime runs it: outputs, or the reason why there are none. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds
from posexport.parity.last_call import RememberingSession
from posexport.runtime.cache import Cache, DecoderInterface
from posexport.runtime.chain import Chain, open_chain
from posexport.runtime.providers import bundle_session
from posexport.spec import Interface, PartSpec
from posexport.targets.dtypes import BY_ORT_TYPE
from posexport.targets.providers import DEFAULT_PROVIDER

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


#: opens a session of a file
Make = Callable[[Path | bytes], "InferenceSession"]


class RunError(Exception):
    """ONNX Runtime raised: its message, on one line."""


def typed(feeds: Feeds, types: Mapping[str, str]) -> Feeds:
    """The arrays in the types that a model declares, by ONNX Runtime's names."""
    dtypes = {name: BY_ORT_TYPE[types[name]].name for name in feeds if types[name] in BY_ORT_TYPE}
    with np.errstate(over="ignore"):  # what is beyond float16, in unused slots of a cache, is infinite there
        return {name: np.asarray(array, dtype=dtypes.get(name)) for name, array in feeds.items()}


@dataclass(frozen=True)
class Opened:
    """The graphs of an open session, asked for ``outputs``."""

    chain: Chain
    outputs: Sequence[str]

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs; RunError with ONNX Runtime's message."""
        try:
            return self.chain.run(self.outputs, typed(feeds, self.chain.types))
        except MemoryError:
            raise
        except Exception as err:  # onnxruntime's exceptions share no base class of their own
            raise RunError(" ".join(str(err).split())) from err


class Runner:
    """A model that is fed by name and asked for outputs by name. ``parts``: ``model`` is the directory of their files.

    ``make`` opens the sessions, where they are not to be plain ones.
    Raises PosexportError where the model's inputs or outputs are not the ones asked for.
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
            provider_options=provider_options,
        )
        self.chain = open_chain(model, parts, make)
        *before, last = self.chain.links
        self.chain = Chain([*(replace(link, session=RememberingSession(link.session)) for link in before), last])
        self.outputs = list(outputs)
        self.types = self.chain.types
        self._check(set(inputs))
        self._options = onnxruntime.RunOptions()
        # a refusal is part of the proof: it is reported, not logged
        self._options.log_severity_level = 4
        # what a long point took is not held for all that follow
        self._options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    @classmethod
    def of(cls, source: Interface, model: Path | bytes, parts: Sequence[PartSpec] = (), **options: Any) -> Self:
        """A runner of ``model`` that is fed and asked by the names of ``source``; ``options``: as of the class."""
        inputs, outputs = ([spec.name for spec in specs] for specs in (source.inputs, source.outputs))
        return cls(model, inputs=inputs, outputs=outputs, parts=parts, **options)

    def _check(self, inputs: set[str]) -> None:
        """Whether the model takes and gives what was asked for, no more and no less."""
        _same("inputs", inputs, set(self.types))
        _same("outputs", set(self.outputs), self.chain.outputs)

    def feeds(self, feeds: Feeds) -> Feeds:
        """The arrays in the types that the model declares."""
        return typed(feeds, self.types)

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs in the order asked for; RunError with ONNX Runtime's message."""
        try:
            outputs: list[Array] = self.chain.run(self.outputs, self.feeds(feeds), self._options)
        except MemoryError:
            raise
        except Exception as err:  # onnxruntime's exceptions share no base class of their own
            raise RunError(" ".join(str(err).split())) from err
        return outputs

    def cache(
        self, of: DecoderInterface, *, rows: int, room: int, fixed: Mapping[str, NDArray[Any]] | None, provider: str
    ) -> Cache:
        """An empty cache of the model, as `posexport.runtime.generate` asks for it."""
        return Cache(self.chain, of, rows=rows, room=room, fixed=fixed, provider=provider)


def _same(kind: str, wanted: set[str], found: set[str]) -> None:
    if wanted == found:
        return
    lacks, extra = sorted(wanted - found), sorted(found - wanted)
    parts = [f"lacks {', '.join(lacks)}"] if lacks else []
    parts += [f"has {', '.join(extra)} that the source does not know"] if extra else []
    raise PosexportError(
        f"the model's {kind} are not the source's: it {' and '.join(parts)}; verify it against its own source"
    )
