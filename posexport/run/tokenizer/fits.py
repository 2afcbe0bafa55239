"""The check that a tokenizer's ids are rows of the model's embedding, and its sentences."""

from collections.abc import Mapping


def beyond(tokens: Mapping[str, int], rows: int | None) -> list[str]:
    """Tokens with ids of ``rows`` or more, ordered by id; ``rows`` None: no limit is known."""
    if rows is None:
        return []
    return sorted((token for token, number in tokens.items() if number >= rows), key=tokens.__getitem__)


def remarks(tokens: Mapping[str, int], rows: int | None) -> list[str]:
    """A remark if there are tokens `beyond` the embedding."""
    odd = beyond(tokens, rows)
    if not odd:
        return []
    named = ", ".join(repr(token) for token in odd[:3]) + (", ..." if len(odd) > 3 else "")
    return [
        f"tokenizer.json numbers tokens up to {tokens[odd[-1]]}, and the model's embedding has {rows} rows: a text "
        f"with {'this token' if len(odd) == 1 else f'one of these {len(odd)} tokens'} is refused ({named})"
    ]


def sentence(token: str | None, number: int, rows: int) -> str:
    """The message of the error for an id without a row."""
    return (
        f"the tokenizer gives {token!r} the id {number}, and the model's embedding has {rows} rows; leave it out of "
        "the text, or convert a checkpoint whose tokenizer fits its model"
    )
