"""The check that token ids are rows of the model's embedding, ahead of ONNX Runtime's error about an index."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from posexport.bundle.manifest import Manifest
from posexport.errors import PosexportError
from posexport.tokenizer.fits import sentence

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Row = TypeVar("Row", bound=Any)


def rows_of(manifest: Manifest, tokenizer: "Tokenizer") -> int | None:
    """The number of rows of the embedding if the tokenizer has ids beyond them, else None: no check is needed."""
    rows = next((spec.size for spec in manifest.inputs if spec.role == "tokens"), None)
    if rows is None:
        return None
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return rows if highest >= rows else None


def checked(encoded: Sequence[Row], rows: int | None, tokenizer: "Tokenizer") -> list[Row]:
    """Returns ``encoded``; PosexportError for an id of ``rows`` or more. ``rows`` None: not checked."""
    if rows is not None:
        for encoding in encoded:
            odd = next((number for number in encoding.ids if number >= rows), None)
            if odd is not None:
                raise PosexportError(sentence(tokenizer.id_to_token(odd), odd, rows))
    return list(encoded)
