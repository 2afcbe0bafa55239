"""What a bundle says of texts: how they become vectors, vectors for tokens, or scores of pairs. Imports no torch."""

from typing import Any, Literal

import msgspec

#: how a message holds its text
MessageFormat = Literal["flat", "structured"]


class TokenRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a text becomes a vector for each of its tokens (ColBERT), beside what `TextRules` say of prompts.

    Attributes:
        query_marker: the token after the first one of a query; empty: none.
        document_marker: the same of a document.
        query_length: tokens at which a query is cut, special tokens and the marker included; None: as other texts.
        document_length: the same of a document.
        filled_to: tokens to which a shorter query is filled up, whose vectors count like those of its own; None: none.
        filler: the token that fills it.
        filler_attended: the other tokens attend to the fillers.
        skipped: tokens that have no vector in a document.
        skipped_in_queries: nor in a query.
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


class TextRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What sentence-transformers does to a text before the model and to a vector behind it: what ``encode`` does too.

    Attributes:
        max_length: tokens at which a text is cut, special tokens included; None: where the model ends.
        lower_case: texts are lowered first.
        prompts: what may stand before a text, by name.
        default_prompt: the name of the prompt where none is asked for; None: none.
        prompt_pooled: the prompt's tokens are pooled with the others; if not, the input ``prompt_mask`` marks them.
        truncate_dim: how many elements of a vector are kept; None: all.
        similarity: how vectors are compared: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``; of a vector for each
            token ``maxsim`` or ``meanmaxsim``.
        tokens: how a text becomes a vector for each token; None: it becomes one.
    """

    max_length: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    prompt_pooled: bool = True
    truncate_dim: int | None = None
    similarity: str = "cosine"
    tokens: TokenRules | None = None


class PairRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a pair of texts becomes a score, of a classifier or a reranker: what ``rank`` does.

    Attributes:
        max_length: tokens at which a pair is cut, special tokens and the template included; None: where the model ends.
        activation: the class of torch.nn that makes scores of logits; None: Sigmoid of one label, Identity of several.
        template: a text with ``{instruction}``, ``{query}`` and ``{document}``, cut where it is too long; None: the
            tokenizer joins both.
        before: stands before the template, and is never cut.
        after: stands behind it, and is never cut.
        instruction: what the template holds where no instruction is given.
        prompts: what may stand before the first text of a pair, by name.
        default_prompt: the name of the prompt where none is asked for; None: none.
        messages: the pair is two messages, of the roles ``query`` and ``document``, that the chat template joins, with
            the prompt as the system's: their contents are texts (``flat``) or lists (``structured``); None: it is none.
        chat_options: what the chat template is told beside the messages.
        suffix_kept: where such a text is cut, its last tokens are the template's all the same.
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
        """The class of torch.nn that makes scores of so many logits."""
        return self.activation or ("Sigmoid" if labels == 1 else "Identity")
