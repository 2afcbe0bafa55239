"""Builds and checks a bundle's tokenizer.json from the files of a folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posexport.run.tokenizer import fits, library
from posexport.run.tokenizer.compare import Render, compare
from posexport.run.tokenizer.entries import entries
from posexport.run.tokenizer.rewrite import content_of, encoded, rewritten
from posexport.run.tokenizer.settings import CONFIG, TOKENIZER, Settings, read
from posexport.run.tokenizer.switches.switch import Content, vocabulary
from posexport.run.tokenizer.vocabulary_files import FORMS, built

BY_RULES = "by rules"


@dataclass(frozen=True)
class Model:
    """Facts of a model that its tokenizer depends on.

    Attributes:
        rows: number of rows of the embedding; None: not known.
        cut: tokens that texts are truncated to by the model's text rules; None: no limit.
        longest: most tokens of a model input; None: no limit.
        generates: whether the model generates text.
        takes_types: whether it has an input of token types.
        takes_pairs: whether pairs of texts are inputs; those of embedders are single texts.
        left_padding_counts: whether padding before a row changes its outputs; called only for a tokenizer that pads so.
    """

    rows: int | None = None
    cut: int | None = None
    longest: int | None = None
    generates: bool = False
    takes_types: bool = False
    takes_pairs: bool = True
    left_padding_counts: Callable[[], bool] = lambda: False


@dataclass
class TokenizerFile:
    """The result of `make_tokenizer`.

    Attributes:
        data: the new tokenizer.json; None if the file is unchanged or there is no tokenizer.
        config: the new tokenizer_config.json; None if it is unchanged or missing.
        remarks: sentences for the user.
        checked: the manifest's ``tokenizer``, what the ids were compared with; None without a tokenizer.
        cut: ``model_max_length`` from sentence-transformers' arguments, which overrides all other limits.
    """

    data: bytes | None = None
    config: bytes | None = None
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
    settings.takes_types, settings.takes_pairs = model.takes_types, model.takes_pairs
    settings.left_padding_counts = model.left_padding_counts
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
    config = None
    if settings.corrected and CONFIG in files:
        config = encoded(json.loads(files[CONFIG].read_bytes()) | settings.corrected)
    compared = compare(data or files[TOKENIZER].read_bytes(), files, settings, render)
    if compared is not None:
        remarks += compared.remarks
    return TokenizerFile(data, config, remarks, BY_RULES if compared is None else compared.checked, cut)


def stored_in_other_files(files: Mapping[str, Path], settings: Settings) -> tuple[Content | None, list[str]]:
    """A tokenizer.json built from older vocabulary files, and remarks; None if it cannot be built."""
    forms = [name for name in FORMS if name in files]
    if not forms:
        return None, []
    named = " and ".join(forms)
    if (content := built(files, settings)) is not None:
        lost = _entries_lost(content, [files[name] for name in forms], settings.name)
        return (None if lost else content), lost
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
    maker = f"{type(theirs).__name__} of transformers {library.version()}"
    if lost := _entries_lost(content, [files[name] for name in forms], maker):
        return None, lost
    return content, [f"{TOKENIZER} was made of {named} by transformers {library.version()}"]


def _entries_lost(content: Content, paths: Sequence[Path], maker: str) -> list[str]:
    """A remark if ``content``, made of vocabulary files, has all entries of none of them."""
    ids = vocabulary(content)
    stored = [(path.name, read) for path in paths if (read := entries(path)) is not None]
    lost = [(name, read.lost(ids), len(read.ids)) for name, read in stored]
    if not lost or any(not tokens for _, tokens, _ in lost):
        return []
    name, tokens, count = min(lost, key=lambda item: len(item[1]))
    return [
        f"the tokenizer that {maker} makes of {name} lacks {len(tokens)} of its {count} entries or has other ids for "
        f"them, such as {tokens[-1]!r}: the bundle takes ids only; for texts convert with --tokenizer FILE, the "
        f"{TOKENIZER} of the model"
    ]
