"""Prompts with pictures: their token ids, and the image features that replace embeddings of image tokens.

In a prompt, one image token marks a picture. It is repeated once per image feature, as transformers' processors do, and
the features replace the embeddings of these tokens. With three positions per token (M-RoPE, Qwen2-VL,
arXiv:2409.12191), the positions of image tokens are the frame, row and column in the picture; the text after it
continues from the larger of its sides.

Features and positions are indexed by the token's index in its row, without padding. So left padding, chunked prefill,
beams, rows that leave the batch and prompts that are read again do not change them.

Shape letters: B rows, T new tokens, P tokens of a prompt, K features of all pictures of a prompt, C model size.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import InputSpec, PictureRules
from posexport.errors import PosexportError
from posexport.run.chat import Message, as_chats
from posexport.run.pages import FEATURES, as_pictures
from posexport.run.texts import Texts
from posexport.run.tiles import IMAGE_SIZES, TILES, number_of_tiles, packed, written

Ids = NDArray[np.int64]
#: keys of a picture in a message of a chat, as transformers reads them
_KEYS = ("image", "url", "path", "base64")


class RenderedChat(str):
    """The text that a chat template has made of messages, with the special tokens that it writes."""

    __slots__ = ()


@dataclass(frozen=True)
class Row:
    """The pictures of one prompt.

    Attributes:
        features_KC: the features of all pictures, in the order of the prompt.
        feature_P: for every token of the prompt the index of its feature; -1 for text.
        positions_3P: frame, row and column of every token; None: the mask counts positions.
    """

    features_KC: NDArray[Any]
    feature_P: Ids
    positions_3P: Ids | None

    @property
    def key(self) -> bytes:
        """Distinguishes rows with the same tokens and other pictures."""
        return hashlib.sha256(np.ascontiguousarray(self.features_KC).tobytes()).digest()


class Pictures:
    """The pictures of a batch of prompts, as inputs of the decoder."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    def repeated(self, count: int) -> "Pictures":
        """Every row ``count`` times, adjacent to each other."""
        return Pictures([row for row in self.rows for _ in range(count)])

    def placed(
        self,
        arrays: Mapping[str, NDArray[Any]],
        embeddings: str,
        text: Sequence[InputSpec],
        rows_B: Any,
        number_BT: Ids,
    ) -> dict[str, NDArray[Any]]:
        """``arrays``, the decoder's inputs for text tokens, with features, positions and marks of pictures.

        Args:
            arrays: by name.
            embeddings: the input that features replace.
            text: the inputs for positions and marks.
            rows_B: the prompt of every row.
            number_BT: the number of every new token in its row; -1 for padding.
        """
        placed = dict(arrays)
        x_BTC = np.array(arrays[embeddings])
        values = {spec.name: np.array(arrays[spec.name]) for spec in text}
        for at, number in enumerate(rows_B):
            row, number_T = self.rows[number], number_BT[at]
            inside_T = (number_T >= 0) & (number_T < len(row.feature_P))
            feature_T = np.where(inside_T, row.feature_P[np.where(inside_T, number_T, 0)], -1)
            is_picture_T = feature_T >= 0
            x_BTC[at, is_picture_T] = row.features_KC[feature_T[is_picture_T]]
            for spec in text:
                if spec.role == "blocks":
                    values[spec.name][at] = is_picture_T
                elif row.positions_3P is not None:
                    values[spec.name][:, at] = _continued(row.positions_3P, number_T)
        return {**placed, **values, embeddings: x_BTC}

    def ends(self, number_BT: Ids, step: int) -> list[int]:
        """Where the chunks of prompts end, about ``step`` columns each; none cuts a picture whose tokens are a block.

        ``number_BT``: the number of every token in its row; -1 for padding.
        """
        cut_T = np.ones(number_BT.shape[1] + 1, bool)
        for row, number_T in zip(self.rows, number_BT, strict=True):
            is_picture_T = (number_T >= 0) & (row.feature_P[number_T] >= 0)
            cut_T[1:-1] &= ~(is_picture_T[:-1] & is_picture_T[1:])
        ends, start = [], 0
        while start < number_BT.shape[1]:
            start = min(start + step, number_BT.shape[1])
            while not cut_T[start]:
                start += 1
            ends.append(start)
        return ends


def _continued(positions_3P: Ids, number_T: Ids) -> Ids:
    """The positions of tokens of a row and of those after its prompt, [3, T]; -1 for padding."""
    length = positions_3P.shape[1]
    after_T = number_T - length + positions_3P.max() + 1
    inside_3T = positions_3P[:, np.clip(number_T, 0, length - 1)]
    return np.where(number_T < 0, -1, np.where(number_T < length, inside_3T, after_T))


def mrope(picture_P: NDArray[np.bool_], grids_I3: Ids) -> Ids:
    """Frame, row and column of every token of a prompt, [3, P], as transformers' ``get_rope_index``.

    Args:
        picture_P: the tokens of pictures.
        grids_I3: frames, rows and columns of each picture, in tokens.
    """
    positions_3P = np.zeros((3, len(picture_P)), np.int64)
    at, now, grids = 0, 0, iter(grids_I3)
    while at < len(picture_P):
        if picture_P[at]:
            sizes = [int(size) for size in next(grids)]
            count, step = int(np.prod(sizes)), max(sizes[1:])
            positions_3P[:, at : at + count] = now + np.indices(sizes).reshape(3, -1)
        else:
            count = step = 1
            positions_3P[:, at] = now
        at, now = at + count, now + step
    return positions_3P


@dataclass(frozen=True)
class Picture:
    """A picture of a prompt.

    Attributes:
        features_KC: its features.
        grid: its frames, rows and columns in tokens; None: its tokens have no place.
        tiles: the rows and columns of its tiles, which are before the whole picture; zeros: it is not cut.
    """

    features_KC: NDArray[Any]
    grid: Ids | None
    tiles: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class PromptReader:
    """Reads prompts with pictures for a bundle.

    Attributes:
        rules: how prompts hold pictures; None: the bundle cannot say it.
        inputs: the bundle's inputs.
        prepare: makes arrays of a picture, with settings of its processor.
        run: runs the bundle for some outputs.
        texts: its tokenizer, opened when needed.
        render: applies its chat template.
    """

    rules: PictureRules | None
    inputs: Sequence[InputSpec]
    prepare: Callable[..., Mapping[str, NDArray[Any]]]
    run: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
    texts: Callable[[], Texts]
    render: Callable[[Sequence[Message]], str]

    def read(self, prompts: Any, images: Sequence[Any] | None) -> tuple[Any, Pictures | None]:
        """Prompts as ids, and their pictures; without pictures None, and without rules ``prompts`` as they are.

        Args:
            prompts: texts, lists of messages, or lists of ids with the tokens of every feature.
            images: for each prompt its pictures, in the order of the prompt; None: pictures are in the messages.

        Raises:
            PosexportError: the bundle has no rules, or a prompt has more or fewer pictures than it names.
        """
        chats = as_chats(prompts)
        if chats is not None and any(pictures_in(chat) for chat in chats):
            if images is not None:
                raise PosexportError("pictures are in the messages and in images; give them in one of the two")
            images = [pictures_in(chat) for chat in chats]
        if self.rules is None:
            if images is None:
                return prompts, None
            raise PosexportError(
                "this bundle does not say how its prompts hold pictures: convert a checkpoint of gemma3, idefics3, "
                "llava, llava_next, llava_onevision, smolvlm, qwen2_vl, qwen2_5_vl, qwen3_vl or qwen3_5 again, or put "
                "its image_features in the place of inputs_embeds yourself"
            )
        as_texts = chats is not None or (_is_list(prompts) and all(isinstance(prompt, str) for prompt in prompts))
        if not _is_list(prompts) or not prompts or (images is None and not as_texts):
            if images is not None:
                raise PosexportError("prompts with pictures are a list of texts, of messages or of lists of ids")
            return prompts, None
        if as_texts and not self.rules.image_token:
            raise PosexportError("this bundle has no tokenizer that knows pictures; give prompts as lists of ids")
        pictures = [[] for _ in prompts] if images is None else _rows(images, len(prompts))
        read = [[self._picture(picture, single=len(row) == 1) for picture in row] for row in pictures]
        texts = [RenderedChat(self.render(chat)) for chat in chats] if chats is not None else prompts
        rows, ids_of_rows = [], []
        for number, (prompt, of_row) in enumerate(zip(texts, read, strict=True)):
            if as_texts:
                ids = self._ids(self._expanded(prompt, of_row, number), chat=isinstance(prompt, RenderedChat))
            else:
                ids = list(prompt)
            rows.append(self._row(ids, of_row, number))
            ids_of_rows.append(ids)
        return ids_of_rows, Pictures(rows) if any(read) else None

    def _picture(self, given: Any, *, single: bool) -> Picture:
        """A picture with its features; ``single``: it is the only one of its prompt."""
        assert self.rules is not None
        anyres, read = self.rules.anyres, {spec.name for spec in self.inputs}
        arrays = self.prepare([given], **({"whole": True} if anyres and anyres.single_only and not single else {}))
        features = self.run({name: array for name, array in arrays.items() if name in read})[FEATURES]
        if anyres:
            features = packed(features[0], arrays[IMAGE_SIZES][0], anyres)
        grids = next((spec for spec in self.inputs if spec.role == "grids"), None)
        return Picture(
            features_KC=features.reshape(-1, features.shape[-1]),
            grid=None if grids is None else arrays[grids.name][0] // [1, grids.size or 1, grids.size or 1],
            tiles=arrays[TILES][0].tolist() if TILES in arrays else (0, 0),
        )

    def _written(self, picture: Picture) -> str:
        """A picture in a prompt, with the tokens of every feature."""
        assert self.rules is not None
        rules, tiles = self.rules, self.rules.tiles
        features = rules.feature_token * (len(picture.features_KC) // number_of_tiles(picture.tiles))
        text = written(tiles, features, picture.tiles) if tiles else features
        return f"{rules.before}{text}{rules.after}"

    def _expanded(self, prompt: str, pictures: Sequence[Picture], number: int) -> str:
        """A prompt with the tokens of every feature in the place of each picture."""
        assert self.rules is not None
        token = self.rules.image_token
        first, *others = prompt.split(token)
        if len(others) != len(pictures):
            raise PosexportError(
                f"prompt {number} has {token} {len(others)} times and {len(pictures)} pictures; write it once where "
                "each picture stands"
            )
        parts = [f"{self._written(picture)}{text}" for picture, text in zip(pictures, others, strict=True)]
        return "".join([first, *parts])

    def _ids(self, text: str, *, chat: bool) -> list[int]:
        assert self.rules is not None
        start = self.rules.chat_start
        if chat and start and text.startswith(start):
            return self.texts().pieces(text)
        return self.texts().prompts([text])[0]

    def _row(self, ids: Sequence[int], of_row: Sequence[Picture], number: int) -> Row:
        assert self.rules is not None
        count = sum(len(picture.features_KC) for picture in of_row)
        picture_P = np.array([token == self.rules.feature_id for token in ids], bool)
        if int(picture_P.sum()) != count:
            raise PosexportError(
                f"prompt {number} has {int(picture_P.sum())} tokens {self.rules.feature_id} for the features of "
                f"pictures, and its pictures have {count}; write one for each, and none in other places"
            )
        grids = [picture.grid for picture in of_row if picture.grid is not None]
        features = [picture.features_KC for picture in of_row]
        return Row(
            features_KC=np.concatenate(features) if features else np.zeros((0, 1)),
            feature_P=np.where(picture_P, picture_P.cumsum() - 1, -1),
            positions_3P=mrope(picture_P, np.array(grids)) if grids else None,
        )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def pictures_in(chat: Sequence[Message]) -> list[Any]:
    """The pictures that the messages of a chat hold."""
    contents = [message.get("content") for message in chat]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    pictures = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "image"]
    return [part[key] for part in pictures for key in _KEYS if key in part]


def _rows(images: Any, count: int) -> list[list[Any]]:
    """The pictures of every prompt; a picture that is not in a list is one."""
    rows, single = as_pictures(images)
    if single or len(rows) != count:
        got = type(images).__name__ if single else f"{len(rows)} lists"
        raise PosexportError(f"images must be a list with the pictures of each of {count} prompts, got {got}")
    return [[] if row is None else as_pictures(row)[0] for row in rows]
