"""An encoding, a family of checkpoints and a lowering that posexport finds by the entry points in pyproject.toml.

pip install examples/extension
posexport convert encoder-ramp --lowering einsum -o ramp
"""

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from posexport.base.targets.target import Target
from posexport.checkpoints.config import Config
from posexport.checkpoints.families import rotary
from posexport.checkpoints.mapping import Plan
from posexport.encodings.encoding import Array, Encoding, register
from posexport.encodings.positions import Positions
from posexport.graph.builder import Builder
from posexport.graph.lowering.attention import Attention, cache_refusal, operator_refusal
from posexport.graph.lowering.lowering import Inputs, Lowering
from posexport.graph.ops.attention import AttentionSpec


def oracle(x_BTC: Array, pos_BT: Array, **_: object) -> Array:
    """The formula in float64 NumPy, which tests compare the encoding with."""
    return x_BTC + 0.01 * pos_BT[..., None] * np.arange(x_BTC.shape[-1])


@register("ramp", cases=[{}], source="examples/extension", embed=oracle)
class Ramp(Encoding):
    """Adds a hundredth of the position times the channel to the embeddings."""

    shift_invariant = False

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        channel_C = torch.arange(x_BTC.shape[-1])
        return x_BTC + 0.01 * (positions.ids_BT[..., None] * channel_C).to(x_BTC.dtype)


def _build(config: Config, task: str) -> Plan:
    settings = rotary.settings(config)
    return rotary.plan(task, settings, rotary.rope(config, settings.head_size))


#: checkpoints with ``"model_type": "ramp-llama"`` and Llama's layers
RAMP_LLAMA = rotary.family("ramp-llama", _build)


class ByEinsum(Lowering[AttentionSpec]):
    """Attention's formula with its products as Einsum; chosen by ``--lowering einsum`` alone."""

    name = "einsum"
    family = "attention"
    why_not_preferred = "nothing was measured"

    def refusal(self, spec: AttentionSpec, target: Target) -> str | None:
        shared = "Einsum takes keys and values for every head" if spec.grouped else None
        return cache_refusal(spec) or operator_refusal(spec) or shared

    def build(self, g: Builder, spec: AttentionSpec, x: Inputs, target: Target) -> ir.Value:
        attention = Attention(g, spec, x, like=x["q"])
        scores = g.Einsum(attention.scaled(x["q"]), x["k"], equation="bhtd,bhsd->bhts")
        probs = attention.probabilities(attention.biased(scores))
        return g.Einsum(probs, x["v"], equation="bhts,bhsd->bhtd")


EINSUM = ByEinsum()
