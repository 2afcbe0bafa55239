"""A bundle's tokenizer.json from the files of a folder, and its check."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from posexport.checkpoints.tokenizer import fits, library
from posexport.checkpoints.tokenizer.compare import Render, compare
from posexport.checkpoints.tokenizer.rewrite import content_of, encoded, rewritten
from posexport.checkpoints.tokenizer.settings import TOKENIZER, Settings, read
from posexport.checkpoints.tokenizer.switches.switch import Content
from posexport.checkpoints.tokenizer.vocabulary_files import FORMS, built

BY_RULES = "by rules"


@dataclass(frozen=True)
class Model:
    """Facts of a model that its tokenizer depends on.

    Attributes:
        rows: of the embedding; None: any id is one.
        cut: the number of tokens that the model's rules cut texts to; None: they do not.
        longest: the number of tokens that the model takes; None: any.
        generates: whether it gives texts.
    """

    rows: int | None = None
    cut: int | None = None
    longest: int | None = None
    generates: bool = False


@dataclass
class TokenizerFile:
    """A tokenizer.json and facts about it.

    Attributes:
        data: its content; None where the file stays as it is or there is none.
        remarks: sentences for the user.
        checked: what its ids were compared with, for the manifest; None without a tokenizer.
        cut: ``model_max_length`` that sentence-transformers hands on, which overrides all other limits.
    """

    data: bytes | None = None
    remarks: list[str] = field(default_factory=list)
    checked: str | None = None
    cut: int | None = None


def make_tokenizer(files: Mapping[str, Path], model: Model, render: Render | None = None) -> TokenizerFile:
    """``files``: by their names in the bundle; ``render``: of conversations, to be compared too.

    Raises:
        PosexportError: a file that is none, or a value that a key cannot have.
    """
    settings = read(files)
    handed_on = settings.handed_on.get("model_max_length")
    cut = handed_on if isinstance(handed_on, int) and handed_on > 0 else None
    settings.cut, settings.longest, settings.generates = cut or model.cut, model.longest, model.generates
    if TOKENIZER in files:
        stored: Content | None = content_of(files[TOKENIZER])
        remarks: list[str] = []
    else:
        stored, remarks = stored_in_other_files(files, settings)
    if stored is None:
        return TokenizerFile(remarks=remarks)
    result = rewritten(stored, settings)
    data = result.data if result.data is not None or TOKENIZER in files else encoded(stored)
    remarks = [*remarks, *result.remarks, *fits.remarks(result.tokens, model.rows)]
    compared = compare(data or files[TOKENIZER].read_bytes(), files, settings, render)
    if compared is None:
        return TokenizerFile(data, remarks, BY_RULES, cut)
    return TokenizerFile(data, [*remarks, *compared.remarks], compared.checked, cut)


def stored_in_other_files(files: Mapping[str, Path], settings: Settings) -> tuple[Content | None, list[str]]:
    """The tokenizer.json that older files give, and remarks; None where there is none, or none can be made."""
    forms = [name for name in FORMS if name in files]
    if not forms:
        return None, []
    if (content := built(files, settings)) is not None:
        return content, []
    named = " and ".join(forms)
    if not library.is_installed():
        return None, [
            f"the folder has {named} and no {TOKENIZER}: the bundle takes ids only; for texts install the extra, "
            "pip install 'posexport[transformers]', and convert again"
        ]
    with library.folder(files) as folder, library.quiet():
        try:
            theirs = library.load(folder, settings.handed_on)
            content = json.loads(theirs.backend_tokenizer.to_str())
        except Exception as err:  # noqa: BLE001 - whatever the library raises
            reason = " ".join(str(err).split())[:200]
            return None, [
                f"transformers {library.version()} makes no {TOKENIZER} of {named}: the bundle takes ids "
                f"only ({reason})"
            ]
    return content, [f"{TOKENIZER} was made of {named} by transformers {library.version()}"]
