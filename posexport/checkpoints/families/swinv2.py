"""Swin V2: cosines, a network of the offset in a window, normalisation after each sublayer; any image is accepted.

The windows and the shift of a stage follow from the height of the images that the checkpoint was made for
(``image_size``), not from the call's, as in transformers. There the mask of a shifted map is added twice, which is
followed: it is added once with twice the number.
"""

import dataclasses

import torch

from posexport.checkpoints.config import LARGEST, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.families.swin import ARCHITECTURES, BESIDE, HEADS, ROOTS, plan_of, settings
from posexport.checkpoints.mapping import Constant, Plan
from posexport.encodings.encoding import Encoding
from posexport.encodings.swinv2 import SwinV2
from posexport.errors import PosexportError
from posexport.models.windowed_block import WindowedConfig


def _build(config: Config, task: str) -> Plan:
    sizes = settings(config, norm="res-post", cosine=True, dropped=-200.0)
    height = config.sizes("image_size")[0] if isinstance(config.values.get("image_size"), list) else None
    rows = (config.size("image_size", 224) if height is None else height) // sizes.patch
    try:
        sizes = dataclasses.replace(sizes, made_for=rows)
        encodings = _encodings(config, sizes)
    except PosexportError as err:
        raise PosexportError(f"{config.label}: image_size, patch_size and windows do not fit: {err}") from err
    plan = plan_of(config, sizes, encodings, task, "swinv2")
    constants = dict(plan.constants)
    for stage, encoding in enumerate(encodings):
        assert isinstance(encoding, SwinV2)
        for block in range(sizes.depths[stage]):
            # rounded to what the file was trained in
            table = Constant(encoding.log_offsets(torch.float32)[None], rtol=0.01, atol=1e-4)
            constants[f"swinv2.encoder.layers.{stage}.blocks.{block}.attention.self.relative_coords_table"] = table
    return dataclasses.replace(plan, constants=constants)


def _encodings(config: Config, sizes: WindowedConfig) -> list[Encoding]:
    stages = len(sizes.depths)
    trained = [0] * stages
    if config.values.get("pretrained_window_sizes") is not None:
        trained = list(config.sizes("pretrained_window_sizes", least=0, most=LARGEST))
    if len(trained) < stages:
        raise PosexportError(f"pretrained_window_sizes = {trained} must hold a number for each of {stages} stages")
    with torch.device("meta"):
        return [
            SwinV2(window=sizes.window_of(stage), heads=sizes.heads[stage], pretrained_window=trained[stage])
            for stage in range(stages)
        ]


SWINV2 = Family(
    model_type="swinv2",
    build=_build,
    prefix="swinv2",
    roots=ROOTS,
    architectures=ARCHITECTURES,
    other_heads=HEADS,
    beside=BESIDE,
)
