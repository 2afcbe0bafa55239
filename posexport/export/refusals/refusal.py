"""What a message of PyTorch or ONNX Runtime means for a user's module, and what to write instead."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A row of the table in docs/own-models.md.

    Attributes:
        says: the message as people meet it, which ``pattern`` matches.
        pattern: a regular expression, looked for in the messages of the whole chain of exceptions.
        meaning: what the line does, after ``model.py line 7: `...` ``; ``{0}`` is the pattern's first group.
        remedy: what to write instead.
        threads: where people ask about it.
    """

    says: str
    pattern: str
    meaning: str
    remedy: str
    threads: tuple[str, ...] = ()

    def sentence(self, text: str, line: str) -> str | None:
        """What ``text`` means, where it is this message; ``line``: the user's, or nothing where it is not known."""
        match = re.search(self.pattern, text)
        if match is None:
            return None
        return f"{line or 'the module'} {self.meaning.format(*match.groups())}; {self.remedy}"
