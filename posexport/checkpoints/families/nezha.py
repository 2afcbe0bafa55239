"""NEZHA: BERT with fixed sinusoids of the clipped distance, on keys and on values; no absolute positions."""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import bert, encoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.nezha import Nezha

_NAMES = encoder.Names(
    prefix="nezha",
    once=bert.EMBEDDINGS,
    layer=bert.SUBLAYERS | bert.POST_NORM,
    fill_mask=bert.FILL_MASK,
    classifier=bert.classifier("nezha"),
)


def _build(config: Config, task: str) -> Plan:
    settings = encoder.settings(config)
    # it has values and no parameters: it is not made on the meta device as the rest is
    encoding = Nezha(clip=config.size("max_relative_position", 64), head_size=settings.head_size)
    # transformers keeps them in a table, where inputs end
    return encoder.plan(config, task, _NAMES, settings, encoding, longest=config.size("max_position_embeddings"))


NEZHA = encoder.family("nezha", _build, "nezha", pooler="pooler.dense", other_heads=bert.HEADS)
