"""BEiT: a bias by the offset of two patches, in every layer or one for all, with or without absolute positions.

Images of any size are accepted, as in transformers 4.57.6: both tables are resized to the image's grid. Not read:
masked image modelling, semantic segmentation; shared and per-layer bias together; a bias trained on images that are
not square, where transformers confuses rows and columns.
"""

from dataclasses import replace

import torch
from torch import Tensor

from posexport.checkpoints.config import Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.families.vit import ARCHITECTURES, ROOTS, origins, settings
from posexport.checkpoints.mapping import ZEROS, Constant, NameMap, Plan, origin
from posexport.encodings.beit import Beit
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.encodings.vit_interpolated import VitInterpolated
from posexport.errors import PosexportError
from posexport.models.vision import Vision, VisionConfig

_TABLE = "relative_position_bias.relative_position_bias_table"
_INDEX = "relative_position_bias.relative_position_index"


def _build(config: Config, task: str) -> Plan:
    mean = config.flag("use_mean_pooling", True)
    sizes = settings(
        config,
        layer_scale=_layer_scale(config),
        final_norm=not mean,
        pooling="mean" if mean else "cls",
        pooled_norm=mean,
    )
    encodings = _encodings(config, sizes)
    model = _model(sizes, encodings, config.labels() if task == "image-classification" else None)
    parameters: NameMap = {
        "attention_residual.layer_scale": "lambda_1",
        "feedforward_residual.layer_scale": "lambda_2",
        "attention.encoding.table": f"attention.attention.{_TABLE}",
        "attention.key.bias": ZEROS,
    }
    plan = Plan(model, origins(model, "beit", parameters))
    index = Constant(_offset_rows(sizes.rows, sizes.columns))
    stems = [f"beit.encoder.layer.{i}.attention.attention" for i in range(sizes.layers)]
    if config.flag("use_shared_relative_position_bias", False):
        plan.origins["layers.0.attention.encoding.table"] = origin(f"beit.encoder.{_TABLE}")
        stems.append("beit.encoder")
    return replace(plan, constants={f"{stem}.{_INDEX}": index for stem in stems})


def _encodings(config: Config, sizes: VisionConfig) -> list[Encoding]:
    """The biases, if there are any, then the absolute positions, if there are any, on the meta device."""
    shared = config.flag("use_shared_relative_position_bias", False)
    per_layer = config.flag("use_relative_position_bias", False)
    if shared and per_layer:
        raise PosexportError(
            f"{config.label} sets use_relative_position_bias and use_shared_relative_position_bias; "
            "only one of them is read"
        )
    if (shared or per_layer) and sizes.rows != sizes.columns:
        raise PosexportError(
            f"{config.label} says image_size = {config.values.get('image_size')!r:.60}; relative positions are read "
            "for square images only, as transformers takes rows for columns in others"
        )
    encodings: list[Encoding] = []
    with torch.device("meta"):
        if shared or per_layer:
            encodings.append(Beit(heads=sizes.heads, rows=sizes.rows, columns=sizes.columns, shared=shared))
        if config.flag("use_absolute_position_embeddings", False):
            encodings.append(VitInterpolated(hidden=sizes.hidden, rows=sizes.rows, columns=sizes.columns))
    return encodings


def _model(sizes: VisionConfig, encodings: list[Encoding], labels: int | None) -> Vision:
    first, *rest = encodings or [NoPE()]
    with torch.device("meta"):
        return Vision(sizes, first, labels, beside=rest[0] if rest else None)


def _layer_scale(config: Config) -> bool:
    """Whether layers have a layer scale: its initial value is above 0."""
    value = config.values.get("layer_scale_init_value", 0.1)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise PosexportError(
            f"{config.label} says layer_scale_init_value = {value!r:.60}; it must be a number, 0 for no layer scale"
        )
    return value > 0


def _offset_rows(rows: int, columns: int) -> Tensor:
    """The row of the biases for every pair of tokens, which files hold although it is a formula."""
    with torch.device("cpu"):
        place_PA = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
        offset_PPA = place_PA[:, None] - place_PA[None, :] + torch.tensor([rows - 1, columns - 1])
        last = (2 * rows - 1) * (2 * columns - 1)
        row_TT = torch.nn.functional.pad(offset_PPA[..., 0] * (2 * columns - 1) + offset_PPA[..., 1], (1, 0, 1, 0))
        row_TT[0, :], row_TT[:, 0] = last, last + 1
        row_TT[0, 0] = last + 2
    return row_TT


BEIT = Family(
    model_type="beit",
    build=_build,
    prefix="beit",
    roots=ROOTS,
    architectures=ARCHITECTURES,
    other_heads={
        "classifier.": "the image classification head",
        "layernorm.": "the masked image modelling head",
        "lm_head.": "the masked image modelling head",
        "decode_head.": "the segmentation head",
        "auxiliary_head.": "the segmentation head",
        "fpn1.": "the segmentation head",
        "fpn2.": "the segmentation head",
    },
    beside={"embeddings.mask_token": "the mask token of pre-training"},
)
