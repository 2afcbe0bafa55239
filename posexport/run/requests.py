"""Reads the prompts of `posexport.Session.generate`: texts, ids, messages or arrays, to token ids and encoder feeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.several import as_prompts
from posexport.base.spec import LengthContract
from posexport.errors import PosexportError
from posexport.run.adapters import AdapterNames
from posexport.run.cache import DecoderInterface
from posexport.run.chat import Message, as_chats
from posexport.run.generate.loop import as_ids
from posexport.run.seq2seq import decoder_prompts as begin
from posexport.run.seq2seq import encoder_feeds, encoder_ids, read_tokens, row_ids_of, rows_of
from posexport.run.texts import Texts

if TYPE_CHECKING:
    from posexport.run.pictures_in_prompts import Pictures

Prompts = Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]] | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GenerationInputs:
    """What `posexport.Session.generate` is called with, without the options of generation: see there.

    Prompts are lists, or arrays by name.
    """

    prompts: Any
    images: Sequence[Any] | None = None
    decoder_prompts: list[Any] | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    adapter: AdapterNames | None = None

    @classmethod
    def of(
        cls,
        prompts: Any,
        images: Any,
        decoder_prompts: Any,
        chat_template_kwargs: Mapping[str, Any] | None,
        adapter: AdapterNames | None = None,
    ) -> "GenerationInputs":
        """The inputs of a call, in any form; PosexportError for options of a chat template without messages."""
        variables = {} if chat_template_kwargs is None else chat_template_kwargs
        if not isinstance(variables, Mapping) or "messages" in variables:
            raise PosexportError(
                f"chat_template_kwargs must be a dictionary of variables other than messages, got {variables!r:.60}"
            )
        listed = as_prompts(prompts)
        if variables and as_chats(listed) is None:
            raise PosexportError("chat_template_kwargs are for prompts that are lists of messages; leave them out")
        return cls(
            prompts=listed,
            images=images,
            decoder_prompts=None if decoder_prompts is None else as_prompts(decoder_prompts, "decoder_prompts"),
            chat_template_kwargs=variables,
            adapter=adapter,
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """Prompts as token ids and arrays.

    Attributes:
        ids: token ids of every row; `NONE` where the row has an embedding that is none of a token's.
        texts: the tokenizer, if completions become text.
        encoder_feeds: inputs by name that every call of the decoder has: an encoder's, adapters.
        row_ids: one for each row of the encoder feeds; rows with equal ids and row ids have equal completions.
        encoder_tokens: number of tokens that the encoder reads.
        context: token ids of the encoder for each row; for a decoder, of the prompt.
        pictures: the pictures of the prompts, or other embeddings in them.
    """

    ids: list[list[int]]
    texts: Texts | None
    encoder_feeds: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    row_ids: Sequence[bytes] | None = None
    encoder_tokens: int = 0
    context: Sequence[Sequence[int]] = ()
    pictures: "Pictures | None" = None

    def with_pictures(self, pictures: "Pictures") -> "Request":
        return replace(self, pictures=pictures, row_ids=[row.key for row in pictures.rows])

    def with_adapters(self, feeds: Mapping[str, NDArray[Any]]) -> "Request":
        """With the adapter of each row, [B], by the name of its input; none: as it is."""
        if not feeds:
            return self
        (ids_B,) = feeds.values()
        before = self.row_ids or [b""] * len(ids_B)
        row_ids = [each + number.tobytes() for each, number in zip(before, ids_B, strict=True)]
        return replace(self, encoder_feeds={**self.encoder_feeds, **feeds}, row_ids=row_ids)

    def repeated(self, count: int) -> "Request":
        """Repeat every row ``count`` times, adjacent to each other."""
        return replace(
            self,
            ids=[ids for ids in self.ids for _ in range(count)],
            encoder_feeds={name: np.repeat(array, count, axis=0) for name, array in self.encoder_feeds.items()},
            row_ids=None if self.row_ids is None else [each for each in self.row_ids for _ in range(count)],
            context=[ids for ids in self.context for _ in range(count)],
            pictures=None if self.pictures is None else self.pictures.repeated(count),
        )


@dataclass(frozen=True, kw_only=True)
class Readers:
    """What a bundle's prompts are read with; called only if prompts need it.

    Attributes:
        texts: returns the tokenizer, if the bundle ``has_tokenizer``.
        render: renders the chat template.
        start: returns the decoder's start token.
        all_ids: decoder prompts include the start token.
    """

    texts: Callable[[], Texts]
    has_tokenizer: bool
    render: Callable[[Sequence[Message]], str]
    start: Callable[[], int | None]
    all_ids: bool


def read_request(
    prompts: Prompts,
    decoder_prompts: Sequence[str] | Sequence[Sequence[int]] | None,
    decoder: DecoderInterface,
    limits: LengthContract,
    readers: Readers,
) -> Request:
    """Read prompts for ``decoder``.

    Raises:
        PosexportError: prompts of a kind that the bundle does not accept.
    """
    if (chats := as_chats(prompts)) is not None:
        if decoder.fixed:
            raise PosexportError("lists of messages are for decoders; this bundle has an encoder: give texts")
        prompts = [readers.texts().pieces(readers.render(chat)) for chat in chats]
    as_texts = not isinstance(prompts, Mapping) and bool(prompts) and all(isinstance(prompt, str) for prompt in prompts)
    tokenizer = readers.texts() if as_texts or readers.has_tokenizer else None
    if decoder.fixed:
        feeds = encoder_feeds(prompts, decoder.fixed, limits, tokenizer)
        start = readers.start()
        ids = begin(decoder_prompts, rows_of(feeds), decoder.tokens, start, tokenizer, all_ids=readers.all_ids)
        return Request(
            ids=ids,
            texts=tokenizer,
            encoder_feeds=feeds,
            row_ids=row_ids_of(feeds, decoder.fixed) if feeds else None,
            encoder_tokens=read_tokens(feeds, decoder.fixed),
            context=encoder_ids(feeds, decoder.fixed),
        )
    if isinstance(prompts, Mapping) and set(prompts) == {decoder.tokens.name}:
        prompts = list(prompts[decoder.tokens.name])  # a file of ids
    if decoder_prompts is not None or isinstance(prompts, Mapping):
        raise PosexportError(
            "this bundle is a decoder alone; give prompts as texts or ids (a file with nothing but "
            f"{decoder.tokens.name}), and no decoder_prompts"
        )
    if as_texts and tokenizer is not None:
        ids = tokenizer.prompts([str(prompt) for prompt in prompts])
    else:
        ids = as_ids(prompts, decoder.tokens)
    return Request(ids=ids, texts=tokenizer, context=ids)
