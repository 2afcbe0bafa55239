"""RoFormer: BERT with interleaved rotations of queries and keys; its rotation's table may be stored in the file."""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.families.bert import EMBEDDINGS, FILL_MASK, HEADS, POST_NORM, SUBLAYERS
from posexport.checkpoints.mapping import Constant, Plan
from posexport.encodings.rope.rope import Rope
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError

_NAMES = encoder.Names(
    prefix="roformer",
    once=EMBEDDINGS | {"embeddings.project": "embeddings_project"},
    layer=SUBLAYERS | POST_NORM,
    fill_mask=FILL_MASK,
    classifier=encoder.ClassifierNames(dense="classifier.dense", out="classifier.out_proj", activation=None),
)


def _build(config: Config, task: str) -> Plan:
    if config.flag("rotary_value", False):
        raise PosexportError(
            f"{config.label} sets rotary_value: it turns the values too, which makes the output depend on absolute "
            f"positions; only rotations of queries and keys are read"
        )
    hidden = config.size("hidden_size")
    width = config.size_or("embedding_size", hidden)
    settings = encoder.settings(config, embedding=None if width == hidden else width)
    longest, head_size = config.size("max_position_embeddings"), encoder.even_heads(config, settings)
    rotation = Rope(head_size=head_size, layout="interleaved")
    constants = {"roformer.encoder.embed_positions.weight": _table(longest, head_size)}
    # transformers reads the table, where inputs end
    return encoder.plan(config, task, _NAMES, settings, rotation, longest=longest, constants=constants)


def _table(longest: int, head_size: int) -> Constant:
    """The sines of all pairs, then their cosines, of every position."""
    angle_MF = torch.outer(
        torch.arange(longest, dtype=torch.float64),
        torch.tensor(frequencies(head_size), dtype=torch.float64),
    )
    return Constant(torch.cat((angle_MF.sin(), angle_MF.cos()), -1), atol=0.01)


ROFORMER = encoder.family("roformer", _build, "roformer", other_heads=HEADS)
