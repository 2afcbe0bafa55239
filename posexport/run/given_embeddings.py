"""Prompts as ``inputs_embeds``: soft prompts, or the hidden states of another encoder.

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


def embeddings_input(graphs: Sequence[PartSpec]) -> InputSpec:
    """The input of the graph that computes, in place of ids.

    Raises:
        PosexportError: the bundle takes ids alone, or its decoder reads more of them than embeddings.
    """
    makers = [graph for graph in graphs if any(spec.name == EMBEDS for spec in graph.outputs)]
    readers = [spec for graph in graphs for spec in graph.inputs if spec.name == EMBEDS]
    if not makers or not readers:
        # models of several graphs are not converted so
        again = "" if len(graphs) > 1 else "convert it again with --input embeddings, or "
        raise PosexportError(f"this bundle takes token ids and no {EMBEDS}; {again}give ids")
    if further := [spec.name for spec in makers[0].outputs if spec.name != EMBEDS]:
        raise PosexportError(f"this bundle's decoder reads {further[0]} of the ids too, beside {EMBEDS}; give ids")
    return readers[0]


def prompts_or_embeddings(prompts: Any, embeds: Any) -> Any:
    """``prompts``, or ``embeds`` by their name; PosexportError for both and for none."""
    if (prompts is None) == (embeds is None):
        raise PosexportError(f"a completion begins with either prompts or {EMBEDS}; give one of them")
    return {EMBEDS: embeds} if prompts is None else prompts


def read_embeddings(
    prompts: Mapping[str, Any], spec: InputSpec, limits: LengthContract
) -> tuple[list[list[int]], Pictures]:
    """A row of `NONE` for each prompt in place of its ids, and its embeddings.

    ``prompts``: `EMBEDS`, [B, T, C] or a list of [T, C], and ``attention_mask`` [B, T] if rows are padded.

    Raises:
        PosexportError: other names, other sizes, infinity or NaN, or a prompt without tokens.
    """
    embeds, mask = prompts[EMBEDS], prompts.get(_MASK.name)
    if isinstance(embeds, list | tuple) and mask is None:
        embeds, mask = _padded(embeds, spec)
    arrays = prepare({**prompts, EMBEDS: embeds, _MASK.name: mask}, [spec, _MASK], limits)
    rows = [x_TC[keep_T == 1] for x_TC, keep_T in zip(arrays[EMBEDS], arrays[_MASK.name], strict=True)]
    pictures = Pictures([Row(x_PC, np.arange(len(x_PC)), None) for x_PC in rows])
    return [[NONE] * len(x_PC) for x_PC in rows], pictures


def _padded(prompts: Sequence[Any], spec: InputSpec) -> tuple[NDArray[Any], NDArray[Any]]:
    """Prompts [T, C] as one array [B, T, C], with zeros on the right, and their attention mask."""
    arrays = [np.asarray(prompt) for prompt in prompts]
    for number, x_TC in enumerate(arrays):
        if x_TC.ndim != 2 or x_TC.shape[1] != spec.axes[-1]:
            raise PosexportError(
                f"{EMBEDS} of prompt {number} must be [tokens, {spec.axes[-1]}], got an array of shape "
                f"{list(x_TC.shape)}"
            )
    length = max(map(len, arrays), default=0)
    padded = [np.pad(x_TC, ((0, length - len(x_TC)), (0, 0))) for x_TC in arrays]
    return np.array(padded), np.array([[1] * len(x_TC) + [0] * (length - len(x_TC)) for x_TC in arrays])
