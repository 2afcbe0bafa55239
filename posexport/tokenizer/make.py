"""Builds and checks a bundle's tokenizer.json from the files of a folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from posexport.tokenizer import fits, library
from posexport.tokenizer.compare import Render, compare
from posexport.tokenizer.rewrite import content_of, encoded, rewritten
from posexport.tokenizer.settings import TOKENIZER, Settings, read
from posexport.tokenizer.switches.switch import Content
from posexport.tokenizer.vocabulary_files import FORMS, built

BY_RULES = "by rules"


@dataclass(frozen=True)
class Model:
    """Facts of a model that its tokenizer depends on.

    Attributes:
        rows: number of rows of the embedding; None: not known.
        cut: tokens that texts are truncated to by the model's text rules; None: no limit.
        longest: most tokens of a model input; None: no limit.
        generates: whether the model generates text.
    """

    rows: int | None = None
    cut: int | None = None
    longest: int | None = None
    generates: bool = False


@dataclass
class TokenizerFile:
    """The result of `make_tokenizer`.

    Attributes:
        data: the new tokenizer.json; None if the file is unchanged or there is no tokenizer.
        remarks: sentences for the user.
        checked: the manifest's ``tokenizer``, what the ids were compared with; None without a tokenizer.
        cut: ``model_max_length`` from sentence-transformers' arguments, which overrides all other limits.
    """

    data: bytes | None = None
    remarks: list[str] = field(default_factory=list)
    checked: str | None = None
    cut: int | None = None


def make_tokenizer(files: Mapping[str, Path], model: Model, render: Render | None = None) -> TokenizerFile:
    """The tokenizer.json that alone gives the ids of transformers' tokenizer for ``files``, by name.

    ``render``: applies the chat template, to compare conversations too.

    Raises:
        PosexportError: a damaged file, or an invalid value of a key.
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
    """A tokenizer.json built from older vocabulary files, and remarks; None if it cannot be built."""
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
