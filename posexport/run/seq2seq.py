"""Inputs of encoder-decoders: the encoder's feeds and the first tokens of the decoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import InputSpec, LengthContract
from posexport.errors import PosexportError
from posexport.run.feeds import prepare
from posexport.run.generate.loop import as_ids
from posexport.run.texts import Texts

Arrays = dict[str, NDArray[Any]]


def encoder_feeds(
    prompts: Sequence[Any] | Mapping[str, Any],
    fixed: Sequence[InputSpec],
    limits: LengthContract,
    texts: Texts | None,
) -> Arrays:
    """Arrays for the encoder's inputs (``fixed``) from texts, lists of ids (padded on the right), or arrays by name.

    Raises:
        PosexportError: no prompts, an empty one, texts or ids for an encoder without tokens, or what `prepare` refuses.
    """
    if isinstance(prompts, Mapping):
        return prepare(prompts, fixed, limits)
    tokens = next((spec for spec in fixed if spec.role == "tokens"), None)
    if tokens is None:
        named = " and ".join(spec.name for spec in fixed if spec.role != "mask")
        raise PosexportError(f"this bundle's encoder reads {named}, not texts or ids; give arrays by name")
    if not len(prompts):
        raise PosexportError("got no prompts; give at least one")
    if texts is not None and isinstance(prompts[0], str):
        return prepare(texts.tokenize(prompts, truncate=False), fixed, limits)
    rows = as_ids(prompts, tokens)
    if empty := [number for number, ids in enumerate(rows) if not ids]:
        raise PosexportError(f"prompt {empty[0]} is empty; give at least one token")
    length = max(map(len, rows))
    arrays = {tokens.name: [[*ids, *[tokens.padding] * (length - len(ids))] for ids in rows]}
    for spec in fixed:
        if spec.role == "mask" and spec.axes == tokens.axes:
            arrays[spec.name] = [[1] * len(ids) + [0] * (length - len(ids)) for ids in rows]
    return prepare(arrays, fixed, limits)


def decoder_prompts(
    prompts: Sequence[Any] | None,
    rows: int,
    tokens: InputSpec,
    start: int | None,
    texts: Texts | None,
    *,
    all_ids: bool = False,
) -> list[list[int]]:
    """The decoder's first tokens of each row: ``start`` followed by the tokens of texts or by lists of ids.

    ``start`` is not repeated before a list that begins with it, as in transformers; ``all_ids`` (Whisper): before none.

    Raises:
        PosexportError: neither a start token nor prompts, or another number of prompts than ``rows``.
    """
    if prompts is None:
        prompts = [""] * rows
    if len(prompts) != rows:
        raise PosexportError(f"got {len(prompts)} decoder_prompts and {rows} prompts; give a list with one for each")
    if not all(isinstance(prompt, str) for prompt in prompts):
        lists = as_ids(prompts, tokens)
        if empty := [number for number, ids in enumerate(lists) if not ids]:
            raise PosexportError(f"decoder prompt {empty[0]} is empty; give at least one token, or no decoder_prompts")
        begun = start is None or all_ids
        return lists if begun else [ids if ids[:1] == [start] else [start, *ids] for ids in lists]  # type: ignore[list-item]
    if start is None:
        raise PosexportError(
            "this bundle's configuration has no decoder_start_token_id; give decoder_prompts, a list of ids for each "
            "prompt, or convert it again from a checkpoint whose config.json has one"
        )
    if any(prompts) and texts is None:
        raise PosexportError("this bundle has no tokenizer.json, so its decoder begins with ids; give lists of them")
    return [[start, *(texts.pieces(prompt) if texts is not None and prompt else [])] for prompt in prompts]


def row_ids_of(feeds: Mapping[str, NDArray[Any]], fixed: Sequence[InputSpec]) -> list[bytes]:
    """One for each row of the encoder's inputs, without padding; those of equal rows are equal."""
    masks = {tuple(spec.axes): feeds[spec.name] for spec in fixed if spec.role == "mask"}
    keys = []
    for index in range(rows_of(feeds)):
        values = []
        for spec in fixed:
            array, mask = feeds[spec.name][index], masks.get(tuple(spec.axes))
            values.append((array if mask is None else array[mask[index] == 1]).tobytes())
        keys.append(b"".join(values))
    return keys


def read_tokens(feeds: Mapping[str, NDArray[Any]], fixed: Sequence[InputSpec]) -> int:
    """Number of tokens that the encoder reads, without padding; 0 if it reads no tokens."""
    masks = [feeds[spec.name] for spec in fixed if spec.role == "mask"]
    return int(masks[0].sum()) if masks and any(spec.role == "tokens" for spec in fixed) else 0


def rows_of(feeds: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(feeds.values())))


def encoder_ids(feeds: Mapping[str, NDArray[Any]], fixed: Sequence[InputSpec]) -> list[list[int]]:
    """The encoder's token ids of each row, without padding; empty if it reads no tokens."""
    tokens = next((spec for spec in fixed if spec.role == "tokens"), None)
    if tokens is None:
        return []
    mask = next((spec for spec in fixed if spec.role == "mask" and spec.axes == tokens.axes), None)
    ids_BS = feeds[tokens.name]
    keep_BS = np.ones(ids_BS.shape, bool) if mask is None else feeds[mask.name] == 1
    return [ids_S[keep_S].tolist() for ids_S, keep_S in zip(ids_BS, keep_BS, strict=True)]
