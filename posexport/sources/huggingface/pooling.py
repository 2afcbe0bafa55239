"""How sentence-transformers makes a sentence's vector of a transformer's hidden states."""

from dataclasses import dataclass, field
from typing import Literal

from posexport.errors import PosexportError
from posexport.nn.heads import SentenceEmbedding

Mode = Literal["mean", "cls"]


@dataclass(frozen=True)
class Pooling:
    """``below`` is the folder of config.json and weights, empty or ending in ``/``."""

    mode: Mode
    normalise: bool
    width: int
    label: str
    below: str = ""
    files: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    width_key: str = "word_embedding_dimension"

    def head(self, hidden: int) -> SentenceEmbedding:
        """The head on hidden states of size ``hidden``; PosexportError where it pools vectors of another size."""
        if self.width != hidden:
            raise PosexportError(
                f"{self.label} says {self.width_key} = {self.width}; config.json says hidden_size = {hidden}"
            )
        return SentenceEmbedding(hidden, self.mode, self.normalise)
