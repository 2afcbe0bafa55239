"""Bundles as the parts convert them, and calls of their sessions on the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from part import Setup

if TYPE_CHECKING:
    from cases import Case

    from posexport.run.session import Session


class NotConvertedError(Exception):
    """Why posexport does not convert a case, such as one with nothing to quantize: no finding of a card."""


def case_of(name: str) -> "Case":
    """``encoder-t5 fp16``, ``decoder-rope fp16 static cache`` or, by a lowering, ``... static cache filled-slots``.

    The last word of one with ``--unpad`` is ``unpadded``.
    """
    from cases import UNPADDED, Case

    model, precision, *rest = name.split()
    if rest[-1:] == [UNPADDED]:
        return Case(model, precision, unpad=True)
    cache, lowering = rest[:1] or ["dynamic"], rest[2:] or ["auto"]
    return Case(model, precision, *cache, *lowering)


@contextmanager
def converted(case: "Case", setup: Setup, settings: tuple[str, ...] | None = None) -> Iterator[Path]:
    """The bundle, not proven, for as long as the block runs; NotConvertedError where there is none."""
    from posexport.conversion.convert import convert
    from posexport.conversion.options import ConvertOptions
    from posexport.errors import PosexportError

    with TemporaryDirectory(prefix="posexport-gpu-") as folder:
        options = ConvertOptions(
            settings=case.settings(2) if settings is None else settings,
            target=setup.target(case.precision),
            precision=case.precision,
            cache=case.cache,
            lowering=case.lowering,
            unpad=case.unpad or None,
            verify=False,
        )
        try:
            convert(case.source(), Path(folder, "bundle"), options)
        except PosexportError as err:
            raise NotConvertedError(str(err)) from err
        yield Path(folder, "bundle")


def opened(bundle: Path, setup: Setup, **options: Any) -> "Session":
    """A session as users open it."""
    import posexport

    return posexport.load(bundle, provider=setup.provider, **options)


def ids(session: "Session", batch: int, length: int, seed: int = 0) -> dict[str, Any]:
    """Inputs of text for `Session.run`."""
    (tokens,) = [spec for spec in session.inputs if spec.role == "tokens"]
    rng = np.random.default_rng(seed)
    return {tokens.name: rng.integers(0, tokens.size or 50, (batch, length))}


def first(session: "Session") -> str:
    """The output that parts look at."""
    return session.outputs[0].name


def same(a: Any, b: Any) -> bool:
    """Equal in every bit, NaN included."""
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
