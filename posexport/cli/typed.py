"""Errors of the library name Python's arguments: here they become options of the command line."""

import re
from collections.abc import Mapping

import msgspec

from posexport.base.options.option import options_in


def as_typed(sentence: str, typed: Mapping[str, str]) -> str:
    """``sentence`` with the keys of ``typed`` (``num_beams=``) replaced by their values (``--num-beams``)."""
    longest_first = sorted(typed, key=len, reverse=True)
    words = (re.escape(word) + (r"\b" if word[-1].isalnum() else "") for word in longest_first)
    return re.sub(rf"(?<![\w-])(?:{'|'.join(words)})", lambda match: typed[match[0]], sentence)


def typed_options(record: type[msgspec.Struct]) -> dict[str, str]:
    """For `as_typed`: the fields of a record of options. A name that is a word of English counts before ``=`` only."""
    typed: dict[str, str] = {}
    for name, listed in options_in(record).items():
        flag = f"--{listed.about.flag or name.replace('_', '-')}"
        if not listed.about.group:
            continue
        typed |= {f"{name}=": f"{flag} ", f"{name}={not listed.default}": flag}
        if "_" in name:
            typed[name] = flag
    return typed
