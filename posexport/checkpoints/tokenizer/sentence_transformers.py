"""``do_lower_case`` of sentence-transformers, which puts a step before the normalizer."""

import json
from collections.abc import Mapping
from pathlib import Path

from posexport.checkpoints.tokenizer.settings import SENTENCE
from posexport.checkpoints.tokenizer.switches.case import lowers_text, set_steps, steps_of
from posexport.checkpoints.tokenizer.switches.switch import Content


def apply(content: Content, files: Mapping[str, Path]) -> list[str]:
    """Change the normalizer where the file asks for it; no remarks."""
    name = next((name for name in SENTENCE if name in files), None)
    config = {} if name is None else json.loads(files[name].read_bytes())
    steps = steps_of(content.get("normalizer"))
    if config.get("do_lower_case") is True and not any(lowers_text(step) for step in steps):
        set_steps(content, [{"type": "Lowercase"}, *steps])
    return []
