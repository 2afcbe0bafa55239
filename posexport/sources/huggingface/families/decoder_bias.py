"""The bias of a fill-mask head's decoder, which files may hold under two names.

BERT's head and its decoder name one bias twice. transformers 4 ties the two always; 5.23 does where the decoder's
weight is tied, and holds two biases otherwise, of which the decoder's is added.
"""

from posexport.encodings.rope.config import release_of
from posexport.sources.huggingface.config import Config


def biases(
    config: Config, names: tuple[str, ...], decoder: str, *, tied: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the ``names`` of the bias those that are one, and those that are not read. ``decoder``: its module's name."""
    own = f"{decoder}.bias"
    if tied or own not in names or (release_of(config.values) or 4) < 5:
        return names, ()
    return (own,), tuple(name for name in names if name != own)
