"""Rows of a padded batch against each row alone, padded as a session pads texts. Imports no torch.

The grid pads on every side that the definition accepts; this is the side that users get.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import (
    BATCH,
    CAPACITY,
    ENCODER_SEQUENCE,
    FRAMES,
    SEQUENCE,
    TOTAL,
    Axis,
    InputSpec,
    OutputSpec,
    Role,
    masked_axis,
)
from posexport.errors import PosexportError
from posexport.proof.criterion import measure
from posexport.proof.grid.inputs import Feeds, draw, keep_mask
from posexport.proof.grid.point import GridPoint
from posexport.proof.invariants.changes import Changes
from posexport.proof.proof import Run
from posexport.run.bundle.manifest import Manifest
from posexport.run.texts import CONFIG, TOKENIZER, Texts

if TYPE_CHECKING:
    from posexport.sources.source import Source

#: texts of different lengths
TEXTS = ("The cat sleeps on the warm stove and dreams of 2 fish.", "How many roads?", "a")
#: inputs that texts fill, or that have a default
_ROLES: frozenset[Role] = frozenset(["tokens", "types", "mask", "flags", "cache", "positions", "adapters"])
#: tokens of the row of `padded_left` beyond the least number
_PADDED = 8


@dataclass(frozen=True)
class PaddedRows:
    """A padded batch.

    Attributes:
        feeds: its inputs.
        keep_BT: the tokens that are no padding, without gaps in a row.
        axes: the axes of these tokens.
    """

    feeds: Feeds
    keep_BT: NDArray[np.bool_]
    axes: frozenset[Axis]

    @property
    def length(self) -> int:
        return int(self.keep_BT.shape[1])

    def changes(self, run: Run, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> Changes:
        """Every output of the batch against its rows computed alone."""
        y = run(self.feeds)
        alone = [array.copy() for array in y]
        for row, keep_T in enumerate(self.keep_BT):
            real = np.flatnonzero(keep_T)
            tokens = slice(int(real[0]), int(real[-1]) + 1)
            feeds = {spec.name: self.feeds[spec.name][self._part(spec.axes, row, tokens)] for spec in inputs}
            for spec, array, y_row in zip(outputs, alone, run(feeds), strict=True):
                array[self._part(spec.axes, row, tokens)] = y_row
        for spec, got, expected in zip(outputs, y, alone, strict=True):
            keep_BT = self.keep_BT if self.axes & {*spec.axes} else None
            yield spec, measure(got, expected, spec.axes, keep_BT)

    def _part(self, axes: Sequence[Axis], row: int, tokens: slice) -> tuple[slice, ...]:
        every = slice(None)
        return tuple(slice(row, row + 1) if a == BATCH else tokens if a in self.axes else every for a in axes)


def of_texts(source: "Source") -> PaddedRows | None:
    """`TEXTS` as a session of the bundle tokenizes and pads them.

    None without a tokenizer, for a model that reads more than texts, and if fewer than two texts differ in length.
    """
    axes = _axes(source)
    if axes is None or TOKENIZER not in source.files:
        return None
    texts = _texts(source)
    encodings = [encoding for text in TEXTS if (encoding := _encoded(texts, text)) is not None]
    counts = [len(encoding.ids) for encoding in encodings]
    if len({*counts}) < 2 or min(counts) < source.limits.min_length:
        return None
    arrays = texts.padded(encodings)
    length = max(counts)
    keep_BT = np.zeros((len(counts), length), dtype=np.bool_)
    for keep_T, count in zip(keep_BT, counts, strict=True):
        start = texts.start(length, count)
        keep_T[start : start + count] = True
    feeds = _drawn(source, GridPoint(batch=len(counts), length=length, encoder_length=length))
    feeds |= {spec.name: arrays[spec.name].astype(spec.dtype) for spec in source.inputs if spec.name in arrays}
    return PaddedRows(feeds, keep_BT, axes)


def padded_left(source: "Source") -> PaddedRows | None:
    """A row of random tokens after padding; None for a model that reads more than texts, and of one length."""
    axes, limits = _axes(source), source.limits
    length = min(limits.min_length + _PADDED, limits.max_length or limits.min_length + _PADDED)
    if axes is None or length == limits.min_length:
        return None
    point = GridPoint(batch=1, length=length, encoder_length=length, padding="left", least=limits.min_length)
    return PaddedRows(_drawn(source, point), keep_mask(point), axes)


def _axes(source: "Source") -> frozenset[Axis] | None:
    """The axes of a text's tokens; None unless rows of different lengths can be one batch of texts."""
    tokens = next((spec for spec in source.inputs if spec.role == "tokens"), None)
    if tokens is None or not {spec.role for spec in source.inputs} <= _ROLES:
        return None
    axis = tokens.axes[-1]
    axes = frozenset({SEQUENCE, TOTAL, CAPACITY} if axis == SEQUENCE else {ENCODER_SEQUENCE})
    masked = any(masked_axis(spec) in axes for spec in source.inputs)
    steps = source.limits.size_steps.get(str(axis), 1) > 1 or any(FRAMES in spec.axes for spec in source.outputs)
    return axes if masked and axis in axes and tokens.axes[0] == BATCH and not steps else None


def _drawn(source: "Source", point: GridPoint) -> Feeds:
    """The point's inputs, without flags, as a session fills them."""
    feeds = draw(point, source.inputs)
    return feeds | {spec.name: np.zeros_like(feeds[spec.name]) for spec in source.inputs if spec.role == "flags"}


def _texts(source: "Source") -> Texts:
    """The tokenizer as a session of the bundle has it."""
    with TemporaryDirectory() as name:
        files = [file for file in (TOKENIZER, CONFIG) if file in source.files]
        for file in files:
            shutil.copyfile(source.files[file], Path(name) / file)
        facts: dict[str, Any] = {"text_rules": source.text_rules, "pair_rules": source.pair_rules, "tokenizer": ""}
        facts |= {"files": files, "inputs": source.inputs, "limits": source.limits}
        return Texts(Path(name), cast(Manifest, SimpleNamespace(**facts)))


def _encoded(texts: Texts, text: str) -> Any | None:
    """The encoding; None if the tokenizer has no token for it, or one that the model lacks."""
    try:
        return texts.rows([text], truncate=True)[0]
    except PosexportError:
        return None
