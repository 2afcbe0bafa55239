"""Embeddings that a call gives in the place of token ids: soft prompts, or what another encoder makes.

Shape letters: B prompts, T tokens, C channels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import BATCH, EMBEDS, SEQUENCE, InputSpec, LengthContract, PartSpec
from posexport.errors import PosexportError
from posexport.run.feeds import prepare
from posexport.run.logits.processor import NONE
from posexport.run.pictures_in_prompts import Pictures, Row

_MASK = InputSpec(name="attention_mask", dtype="int64", axes=[BATCH, SEQUENCE], role="mask")


def embeddings_input(parts: Sequence[PartSpec]) -> InputSpec:
    """The input of the graph that computes, in place of ids.

    Raises:
        PosexportError: the bundle takes ids alone, or its decoder reads more of them than embeddings.
    """
    makers = [part for part in parts if any(spec.name == EMBEDS for spec in part.outputs)]
    readers = [spec for part in parts for spec in part.inputs if spec.name == EMBEDS]
    if not makers or not readers:
        raise PosexportError(
            f"this bundle takes token ids and no {EMBEDS}; convert it again with --input embeddings, or give ids"
        )
    if others := [spec.name for spec in makers[0].outputs if spec.name != EMBEDS]:
        raise PosexportError(f"this bundle's decoder reads {others[0]} of the ids too, beside {EMBEDS}; give ids")
    return readers[0]


def given_embeddings(
    prompts: Mapping[str, Any], spec: InputSpec, limits: LengthContract
) -> tuple[list[list[int]], Pictures]:
    """A row of `NONE` for each prompt in place of its ids, and its embeddings.

    ``prompts``: `EMBEDS`, [B, T, C] or a list of [T, C], and ``attention_mask`` [B, T] if rows are padded.

    Raises:
        PosexportError: other names, other sizes, infinity or NaN, or a prompt without tokens.
    """
    given, mask = prompts[EMBEDS], prompts.get(_MASK.name)
    if isinstance(given, list | tuple) and mask is None:
        given, mask = _padded(given, spec)
    arrays = prepare({**prompts, EMBEDS: given, _MASK.name: mask}, [spec, _MASK], limits)
    rows = [x_TC[keep_T == 1] for x_TC, keep_T in zip(arrays[EMBEDS], arrays[_MASK.name], strict=True)]
    pictures = Pictures([Row(x_PC, np.arange(len(x_PC)), None) for x_PC in rows])
    return [[NONE] * len(x_PC) for x_PC in rows], pictures


def _padded(given: Any, spec: InputSpec) -> tuple[NDArray[Any], NDArray[Any]]:
    """Arrays [T, C] of prompts as one, [B, T, C], with zeros after each, and the mask of what is not padding."""
    rows = [np.asarray(row) for row in given]
    for number, row in enumerate(rows):
        if row.ndim != 2 or row.shape[1] != spec.axes[-1]:
            raise PosexportError(
                f"{EMBEDS} of prompt {number} must be [tokens, {spec.axes[-1]}], got an array of shape "
                f"{list(row.shape)}"
            )
    length = max(map(len, rows), default=0)
    padded = [np.pad(row, ((0, length - len(row)), (0, 0))) for row in rows]
    return np.array(padded), np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows])
