"""``pooler_output`` beside the hidden states, for checkpoints whose family and files have a pooler."""

from collections.abc import Container
from dataclasses import replace

import torch

from posexport.checkpoints.families.family import Family
from posexport.checkpoints.plan import Plan, origin
from posexport.nn.heads import Features, PooledFeatures


def with_pooler(plan: Plan, family: Family, stored: Container[str]) -> Plan:
    """The plan of a model for features with the pooler, where ``stored`` names its weights; the model is changed.

    transformers would give one without weights random ones; here it has no ``pooler_output``.
    """
    if family.pooler is None:
        return plan
    names = {leaf: f"{family.prefix}.{family.pooler}.{leaf}" for leaf in ("weight", "bias")}
    head = getattr(plan.model, "head", None)
    if not isinstance(head, Features) or not all(name in stored for name in names.values()):
        return plan
    with torch.device("meta"):
        pooled = PooledFeatures(int(head.outputs[0].axes[-1]))
    plan.model.head = pooled
    plan.model.reads_first_token = True
    return replace(plan, origins=plan.origins | {f"head.dense.{leaf}": origin(name) for leaf, name in names.items()})
