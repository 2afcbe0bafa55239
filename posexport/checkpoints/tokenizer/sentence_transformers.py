"""``do_lower_case`` of sentence-transformers, which puts a step before the normalizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posexport.checkpoints.tokenizer.settings import SENTENCE
from posexport.checkpoints.tokenizer.switches.case import lowers_text, set_steps, steps_of
from posexport.checkpoints.tokenizer.switches.switch import Content


def apply(content: Content, files: Mapping[str, Path]) -> list[str]:
    """Change the normalizer where the file asks for it; no remarks."""
    steps = steps_of(content.get("normalizer"))
    if asks(files) and not any(lowers_text(step) for step in steps):
        set_steps(content, [{"type": "Lowercase"}, *steps])
    return []


def asks(files: Mapping[str, Path]) -> bool:
    """Whether the library lowers texts before the tokenizer does anything."""
    name = next((name for name in SENTENCE if name in files), None)
    return name is not None and json.loads(files[name].read_bytes()).get("do_lower_case") is True


def apply_to_library(theirs: Any) -> None:
    """The same change of a tokenizer of transformers."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = theirs.backend_tokenizer
    content = json.loads(backend.to_str())
    if not any(lowers_text(step) for step in steps_of(content.get("normalizer"))):
        normalizer = backend.normalizer
        backend.normalizer = Sequence([Lowercase(), *([] if normalizer is None else [normalizer])])
