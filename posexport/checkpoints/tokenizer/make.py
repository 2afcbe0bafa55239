"""A bundle's tokenizer.json from the files of a folder, and what was checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from posexport.checkpoints.tokenizer import fits
from posexport.checkpoints.tokenizer.rewrite import rewritten
from posexport.checkpoints.tokenizer.settings import TOKENIZER

BY_RULES = "by rules"


@dataclass(frozen=True)
class Model:
    """What a tokenizer must know of its model.

    Attributes:
        rows: of the embedding; None: any id is one.
        cut: the number of tokens that the model's rules cut texts to; None: they do not.
        longest: the number of tokens that the model takes; None: any.
    """

    rows: int | None = None
    cut: int | None = None
    longest: int | None = None


@dataclass
class Made:
    """``data``: the content of tokenizer.json, None where the file stays as it is or there is none.

    ``checked``: what its ids were compared with, for the manifest; None without a tokenizer.
    """

    data: bytes | None = None
    remarks: list[str] = field(default_factory=list)
    checked: str | None = None


def made(files: Mapping[str, Path], model: Model) -> Made:
    """``files``: by their names in the bundle.

    Raises:
        PosexportError: a file that is none, or a value that a key cannot have.
    """
    if TOKENIZER not in files:
        return Made()
    result = rewritten(files, cut=model.cut, longest=model.longest)
    return Made(result.data, [*result.remarks, *fits.remarks(result.tokens, model.rows)], BY_RULES)
