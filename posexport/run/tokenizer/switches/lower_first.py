"""``do_lower_case`` of sentence-transformers: a ``Lowercase`` step before the normalizer."""

import json
from typing import Any

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.case import lowers_text, set_steps, steps_of
from posexport.run.tokenizer.switches.switch import Content, Switch


def apply(content: Content, settings: Settings) -> list[str]:
    steps = steps_of(content.get("normalizer"))
    if settings.lowers_first and not any(lowers_text(step) for step in steps):
        set_steps(content, [{"type": "Lowercase"}, *steps])
    return []


def apply_to_library(tokenizer: Any) -> None:
    """The same change to a transformers tokenizer, which sentence-transformers makes after loading it."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    content = json.loads(backend.to_str())
    if not any(lowers_text(step) for step in steps_of(content.get("normalizer"))):
        normalizer = backend.normalizer
        backend.normalizer = Sequence([Lowercase(), *([] if normalizer is None else [normalizer])])


SWITCH = Switch((), apply)
