"""An encoding by itself, for pictures and checks: sized and seeded as in a built-in model, but without one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from posexport.base.options.settings import convert
from posexport.encodings.build import build, lookup
from posexport.encodings.build import settings as settings_of
from posexport.encodings.encoding import Encoding, Entry
from posexport.errors import PosexportError
from posexport.sources.builtin import LARGEST, MAX_POSITIONS
from posexport.sources.definitions.encoder import ENCODER
from posexport.sources.settings import parse, refuse_unknown


@dataclass(frozen=True)
class EncodingAlone:
    """An encoding as the first layer uses it, with the sizes of a built-in model.

    ``layer`` is in eval mode; its parameters are drawn from the seed.
    """

    entry: Entry
    layer: Encoding
    hidden: int
    heads: int
    head_size: int
    seed: int

    def has(self, hook: str) -> bool:
        """Whether the encoding acts through ``hook``."""
        return hook in self.layer.hooks

    @property
    def acts(self) -> bool:
        """Whether it acts at all; a control does not."""
        return bool(self.layer.hooks)

    @property
    def parameters(self) -> str:
        """Its constructor's arguments, as ``name=value`` with commas between."""
        return ", ".join(f"{name}={value}" for name, value in self.layer.parameters_given.items())


def alone(name: str, pairs: Sequence[str] = ()) -> EncodingAlone:
    """The encoding called ``name``; ``pairs`` are texts KEY=VALUE: its settings, a model's sizes, and ``seed``.

    Raises:
        PosexportError: an unknown encoding or setting, or a value that does not fit.
    """
    entry = lookup(name)
    stated = parse(pairs)
    sizes = {
        key: cast(int, convert(f"--set {key}", stated.get(key, str(default)), int))
        for key, default in (
            ("hidden", ENCODER.defaults["hidden"]),
            ("heads", ENCODER.defaults["heads"]),
            ("max_positions", MAX_POSITIONS),
            ("seed", 0),
        )
    }
    for key, value in sizes.items():
        if not (key == "seed" or value >= 1) or abs(value) > LARGEST:
            raise PosexportError(f"--set {key} must be a whole number from 1 to {LARGEST}, got {value}")
    # the size of a head, where nothing states it
    divides = sizes["hidden"] % sizes["heads"] == 0
    if not divides and "head_size" in settings_of(entry) and "head_size" not in stated:
        raise PosexportError(
            f"--set hidden={sizes['hidden']} must be a multiple of heads={sizes['heads']}; or give --set head_size=..."
        )
    head_size = convert("--set head_size", stated.get("head_size", str(sizes["hidden"] // sizes["heads"])), int)
    seed = sizes.pop("seed")
    sizes["head_size"] = cast(int, head_size)
    # learned tables are drawn with the seed
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        encoding, used = build(name, sizes, stated)
        layer = encoding.in_layer(0).eval().requires_grad_(False)
    refuse_unknown(stated, list(dict.fromkeys((*settings_of(entry), *used, *sizes, "seed"))), name)
    return EncodingAlone(entry, layer, sizes["hidden"], sizes["heads"], sizes["head_size"], seed)
