"""Ids that the model's embedding does not have: one sentence, in place of an error of ONNX Runtime."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from posexport.bundle.manifest import Manifest
from posexport.checkpoints.tokenizer.fits import sentence
from posexport.errors import PosexportError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Row = TypeVar("Row", bound=Any)


def rows_of(manifest: Manifest, tokenizer: "Tokenizer") -> int | None:
    """The rows of the embedding where the tokenizer has ids beyond them, else None."""
    rows = next((spec.size for spec in manifest.inputs if spec.role == "tokens"), None)
    if rows is None:
        return None
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return rows if highest >= rows else None


def checked(encoded: Sequence[Row], rows: int | None, tokenizer: "Tokenizer") -> list[Row]:
    """``encoded``; PosexportError for an id beyond ``rows``, None: there is none."""
    if rows is not None:
        for encoding in encoded:
            odd = next((number for number in encoding.ids if number >= rows), None)
            if odd is not None:
                raise PosexportError(sentence(tokenizer.id_to_token(odd), odd, rows))
    return list(encoded)
