"""The recipe in a manifest: every option that decides what a conversion writes, so that it can be done again.

It holds names, numbers and hashes, never paths: a recipe is the same wherever and by whomever a model was converted.
"""

from typing import Literal

import msgspec

from posexport.spec import Beyond
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.target import PORTABLE, TargetName

CacheName = Literal["dynamic", "static"]
RotationName = Literal["at-write", "at-read"]
#: what the directory looks like (`posexport.export.layouts`)
LayoutName = Literal["bundle", "genai", "optimum", "transformers.js"]


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of ``posexport convert`` as they were resolved.

    Attributes:
        task: the source's, also where nobody named it.
        settings: the ``--set`` pairs of a built-in model.
        as_transformers: where transformers' code and the paper differ, the code was followed.
        cache: a decoder's KV cache.
        rotation: when a decoder rotates keys.
        max_length: in tokens, as it was asked for (None: the source's own limit).
        lowering: ``auto``, or the one that was asked for.
        inline: the graph has no functions.
    """

    task: str
    settings: dict[str, str] = {}
    as_transformers: bool = False
    cache: CacheName = "dynamic"
    rotation: RotationName = "at-write"
    beyond: Beyond = "error"
    max_length: int | None = None
    target: TargetName = PORTABLE
    lowering: str = "auto"
    opset: int
    inline: bool = False
    layout: LayoutName = "bundle"
    precision: PrecisionOptions = PrecisionOptions()
