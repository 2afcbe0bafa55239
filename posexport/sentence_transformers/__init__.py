"""A module for sentence-transformers 5 and 6 that runs a bundle in place of a PyTorch model.

Importing this package imports neither sentence-transformers nor PyTorch; `Transformer` does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posexport.sentence_transformers.transformer import Transformer as Transformer

__all__ = ["Transformer"]


def __getattr__(name: str) -> Any:
    if name == "Transformer":
        from posexport.sentence_transformers.transformer import Transformer

        return Transformer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
