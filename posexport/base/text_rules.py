"""Rules in the manifest by which texts become vectors, token vectors, scores of pairs, or prompts with pictures.

Imports no torch.
"""

from typing import Any, Literal

import msgspec

#: whether a chat message has its text as a str or as a list of content parts
MessageFormat = Literal["flat", "structured"]


class TileRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a prompt holds a picture that a model reads as tiles (Idefics3): the rows of tiles, then the whole picture.

    Attributes:
        before: before the features of a tile, with ``{row}`` and ``{column}``, which are counted from 1.
        row_after: after the tiles of a row.
        after: after all rows.
        whole_before: before the features of the whole picture; one that is not cut begins with it.
        whole_after: after them.
    """

    before: str
    row_after: str
    after: str
    whole_before: str
    whole_after: str


class AnyResRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the features of a picture and of its tiles become those of a prompt (LLaVA-NeXT, LLaVA-OneVision).

    Attributes:
        sizes: heights and widths in pixels that a picture may get.
        tile_size: the edge of a tile in pixels.
        most_tiles: the features of more tiles are resized to about as many; None: they stay.
        single_only: only the picture of a prompt with one is cut; of several each is one square.
    """

    sizes: list[tuple[int, int]]
    tile_size: int
    most_tiles: int | None = None
    single_only: bool = False


class PageRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The texts in which a model of pages (ColPali) reads queries and pictures.

    Attributes:
        query_start: before a query and its prompt.
        query_end: after a query: query augmentation tokens, whose vectors enter MaxSim.
        page_start: before the image tokens of a page.
        page_end: after them.
        image_token: the token in whose place the model puts a feature of the picture.
        special_tokens: the tokenizer's special tokens are around these texts.
        tiles: of a model that reads the tiles of a page; None: pages are not cut.
    """

    query_start: str
    query_end: str
    page_start: str
    page_end: str
    image_token: str
    special_tokens: bool = False
    tiles: TileRules | None = None


class PictureRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a prompt of a model of images and text holds pictures; `posexport.Session.generate` follows it.

    A picture becomes ``before``, as many ``feature_token`` as it has features, and ``after``.

    Attributes:
        feature_id: the id of the tokens whose embeddings are replaced by features.
        image_token: what stands for a picture in a prompt; empty: there is no tokenizer, and prompts are ids.
        feature_token: the token with ``feature_id``.
        before: before the features of a picture.
        after: after them.
        chat_start: a chat that its template begins with this token is tokenized without further special tokens;
            empty: there is no such token.
        tiles: of a model that reads tiles, what is around their features; None: pictures are not cut.
        anyres: the features of a picture and its tiles become one list; None: they are one already.
    """

    feature_id: int
    image_token: str = ""
    feature_token: str = ""
    before: str = ""
    after: str = ""
    chat_start: str = ""
    tiles: TileRules | None = None
    anyres: AnyResRules | None = None


class TokenRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rules by which a text becomes one vector for each token (ColBERT); prompts are in `TextRules`.

    Attributes:
        query_marker: token inserted after the first token of a query; empty for no marker.
        document_marker: token inserted after the first token of a document; empty for no marker.
        query_length: maximum tokens of a query, special tokens and the marker included; None: ``max_length``.
        document_length: maximum tokens of a document, counted like ``query_length``.
        filled_to: tokens to which a shorter query is padded (query expansion); the vectors of this padding enter
            MaxSim. None: no query expansion.
        filler: token of the query expansion.
        filler_attended: the other tokens attend to the query expansion.
        skipped: tokens that have no vector in a document.
        skipped_in_queries: these tokens have no vector in a query either.
        pages: documents are pictures, and texts are queries; the other rules do not apply. None: documents are texts.
    """

    query_marker: str = ""
    document_marker: str = ""
    query_length: int | None = None
    document_length: int | None = None
    filled_to: int | None = None
    filler: str = "[MASK]"
    filler_attended: bool = False
    skipped: list[str] = []
    skipped_in_queries: bool = False
    pages: PageRules | None = None


class TextRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rules of sentence-transformers for a text before the model and its vector after it; ``encode`` follows them.

    Attributes:
        max_length: maximum tokens of a text, special tokens included; None: the model's limit.
        max_characters: maximum characters of a text, cut before it is tokenized; None: no limit.
        lower_case: texts are lower-cased first.
        prompts: prefixes of texts, by name.
        default_prompt: name of the prompt that is used by default; None: no prompt.
        prompt_pooled: the prompt's tokens are pooled with the others; if not, the input ``prompt_mask`` marks them.
        truncate_dim: number of elements of a vector that remain; None: all.
        similarity: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``; for token vectors ``maxsim`` or ``meanmaxsim``.
        tokens: rules for token vectors; None: a text becomes one vector.
        unused_tokens: of a model that gives weights and vectors of tokens beside the text's (BGE-M3), the tokens
            without a weight; None: another model.
    """

    max_length: int | None = None
    max_characters: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    prompt_pooled: bool = True
    truncate_dim: int | None = None
    similarity: str = "cosine"
    tokens: TokenRules | None = None
    unused_tokens: list[str] | None = None


class PairRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rules by which a classifier or a reranker scores a pair of texts; ``predict`` and ``rank`` follow them.

    Attributes:
        max_length: maximum tokens of a pair, special tokens and the template included; None: the model's limit.
        activation: class of torch.nn that is applied to the logits; None: Sigmoid for one label, else Identity.
        template: text with ``{instruction}``, ``{query}`` and ``{document}``, truncated at ``max_length``; None: the
            tokenizer joins query and document.
        before: prefix of the template, never truncated.
        after: suffix of the template, never truncated.
        instruction: default instruction of the template.
        prompts: prefixes of the first text of a pair, by name.
        default_prompt: name of the prompt that is used by default; None: no prompt.
        messages: the chat template joins the pair as two messages of the roles ``query`` and ``document``, with the
            prompt as the system message. Their contents are texts (``flat``) or lists (``structured``). None: the pair
            is not formatted as messages.
        chat_options: further variables of the chat template.
        suffix_kept: a truncated text of the chat template ends with the template's last tokens.
    """

    max_length: int | None = None
    activation: str | None = None
    template: str | None = None
    before: str = ""
    after: str = ""
    instruction: str = ""
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    messages: MessageFormat | None = None
    chat_options: dict[str, Any] = {}
    suffix_kept: bool = True

    def activation_of(self, labels: int) -> str:
        """The class of torch.nn that is applied to the logits of ``labels`` labels."""
        return self.activation or ("Sigmoid" if labels == 1 else "Identity")
