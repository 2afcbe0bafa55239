"""Layers with a state between tokens: a linear recurrence and a causal depthwise convolution.

**Recurrence.** The state of a head is a matrix S [K, V]. For every token ``S = exp(g) S + k (x) u``; the output is
``scale * q S``. Rule ``gated`` (Mamba-2, arXiv:2405.21060, equation 1; Mamba, arXiv:2312.00752, algorithm 2, with heads
of one value): ``u = v``. Rule ``gated_delta`` (Gated DeltaNet, arXiv:2412.06464, equation 10): ``u = beta (v - k S)``.
The log decay g is one value a head, or one for each row of S (``by_key``). A caller sets g and v (or beta) to 0 at
padding, so that it changes no state.

**Convolution.** A causal convolution of each channel; its state is the last W - 1 inputs. It reads every row without
its padding, wherever that is.

States are float32 or wider in a model of any precision. Shape letters: B batch, T tokens, H heads, K key size, V value
size, C channels, W taps of a convolution, L tokens of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from posexport.graph.ops.operator import DOMAIN
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.ops.tensor import Tensor
from posexport.graph.ops.tracing import traced_as

#: tokens that PyTorch computes at a time: with one decay a head, and with a decay by key
_CHUNK, _CHUNK_BY_KEY = 64, 8


@dataclass(frozen=True)
class RecurrenceSpec(NodeSpec):
    """Which recurrence a node computes, on packed heads.

    Inputs: q and k [B, T, H K], v [B, T, H V], past [B, H, K, V], decay [B, T, H] or [B, T, H K], beta [B, T, H].
    Its other attributes: ``heads``: H. ``scale``. ``split_heads``: the shape that splits packed heads.
    """

    op_type: ClassVar[str] = "Recurrence"

    rule: str = "gated"
    by_key: bool = False

    @property
    def name(self) -> str:
        """For example ``ByKeyGatedDeltaRecurrence``."""
        words = "".join(word.capitalize() for word in self.rule.split("_"))
        return f"{'ByKey' * self.by_key}{words}Recurrence"

    @property
    def inputs(self) -> list[str]:
        return ["q", "k", "v", "past", "decay", *["beta"] * (self.rule == "gated_delta")]

    @property
    def outputs(self) -> list[str]:
        return ["out", "present"]


@dataclass(frozen=True)
class ConvolutionSpec(NodeSpec):
    """Which convolution a node computes.

    Inputs: x [B, C, T], weight [C, 1, W], past [B, C, W - 1], bias [C], mask [B, T] (int64, 0 at padding). Its other
    attribute: ``channels``: C.
    """

    op_type: ClassVar[str] = "CausalConvolution"

    biased: bool = False
    silu: bool = False

    @property
    def name(self) -> str:
        """For example ``BiasedSiluCausalConvolution``."""
        return f"{'Biased' * self.biased}{'Silu' * self.silu}CausalConvolution"

    @property
    def inputs(self) -> list[str]:
        return ["x", "weight", "past", "mask", *["bias"] * self.biased]

    @property
    def outputs(self) -> list[str]:
        return ["out", "present"]


def _emit(
    spec: NodeSpec, tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]], **attributes: float | Sequence[int]
) -> tuple[Tensor, Tensor]:
    import torch

    out, present = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{spec.op_type}",
        tensors,
        {**spec.attributes, **attributes},
        dtypes=[tensors[0].dtype] * 2,
        shapes=shapes,
        version=1,
    )
    return out, present


def _recurrence_node(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor, decay: Tensor, beta: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    spec = RecurrenceSpec("gated" if beta is None else "gated_delta", by_key=decay.ndim == 4)
    heads, size = v.shape[2:]
    packed = [q.flatten(2), k.flatten(2), v.flatten(2), past, decay.flatten(2), *([] if beta is None else [beta])]
    shapes = [packed[2].shape, past.shape]
    out, present = _emit(spec, packed, shapes, heads=heads, scale=scale, split_heads=[0, 0, heads, -1])
    return out.reshape(*out.shape[:2], heads, size), present


@traced_as(_recurrence_node)
def recurrence(
    q: Tensor, k: Tensor, v: Tensor, past: Tensor, decay: Tensor, beta: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The outputs [B, T, H, V] and the state after them [B, H, K, V].

    q and k [B, T, H, K], v [B, T, H, V], decay [B, T, H] or [B, T, H, K], beta [B, T, H]. In float64, the reference of
    a proof, in chunks of tokens; else token by token, as graphs compute it: its rounding is what they are allowed.
    """
    import torch

    by_key = decay.ndim == 4
    size = 1 if q.dtype != torch.float64 else _CHUNK_BY_KEY if by_key else _CHUNK
    # heads before tokens; one decay a head is that of all keys
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    decay = (decay if by_key else decay[..., None]).transpose(1, 2)
    outs = []
    for start in range(0, k.shape[2], size):
        part = slice(start, start + size)
        strength = None if beta is None else beta[:, part].mT[..., None]
        step = _token if size == 1 else _chunk
        out, past = step(q[:, :, part], k[:, :, part], v[:, :, part], past, decay[:, :, part], strength)
        outs.append(out * scale)
    return torch.cat(outs, 2).transpose(1, 2), past


def _token(q: Tensor, k: Tensor, v: Tensor, past: Tensor, decay: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output of one token [B, H, 1, V] and the state after it, by the definition."""
    state = decay.exp().mT * past
    update = v if beta is None else beta * (v - k @ state)
    state = state + k.mT * update
    return q @ state, state


def _chunk(q: Tensor, k: Tensor, v: Tensor, past: Tensor, decay: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
    """The outputs of L tokens [B, H, L, V] and the state after them, as products over pairs of tokens.

    decay [B, H, L, K or 1], beta [B, H, L, 1].
    """
    import torch

    # from token s to a later token t the state decays by exp(g_(s+1) + .. + g_t): sums of these alone, which neither
    # overflow nor cancel
    length = k.shape[2]
    steps = torch.arange(length, device=k.device)
    later = (steps[:, None] > steps)[..., None]
    between = decay[:, :, :, None].expand(-1, -1, -1, length, -1).masked_fill(~later, 0).cumsum(2)
    factor = between.masked_fill(later.transpose(0, 1), -torch.inf).exp()
    since_past = decay.cumsum(2).exp()

    def weighted(left: Tensor) -> Tensor:
        """The product of ``left`` at t with the decayed key of s, for s up to t, [B, H, L, L]."""
        if factor.shape[-1] == 1:
            return left @ k.mT * factor[..., 0]
        return torch.einsum("bhtk,bhsk,bhtsk->bhts", left, k, factor)

    update = v
    if beta is not None:
        # u_t = beta_t (v_t - k_t S) of all tokens at once: a triangular system
        earlier = (weighted(k) * beta).tril(-1)
        unit = torch.eye(length, dtype=k.dtype, device=k.device)
        known = beta * (v - (k * since_past) @ past)
        update = torch.linalg.solve_triangular(earlier + unit, known, upper=False, unitriangular=True)
    out = (q * since_past) @ past + weighted(q) @ update
    return out, since_past[:, :, -1:].mT * past + (k * factor[:, :, -1]).mT @ update


def _convolution_node(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, mask: Tensor, *, silu: bool
) -> tuple[Tensor, Tensor]:
    spec = ConvolutionSpec(biased=bias is not None, silu=silu)
    tensors = [x, weight, past, mask, *([] if bias is None else [bias])]
    return _emit(spec, tensors, [x.shape, past.shape], channels=weight.shape[0])


@traced_as(_convolution_node)
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor, mask: Tensor, *, silu: bool
) -> tuple[Tensor, Tensor]:
    """The outputs [B, C, T], and the last W - 1 inputs that are no padding; the outputs of padding are any values.

    x [B, C, T], weight [C, 1, W], past [B, C, W - 1], mask [B, T].
    """
    import torch
    import torch.nn.functional as F

    inputs, length = torch.cat((past, x), 2), x.shape[2]
    padded = not bool((mask != 0).all())
    if padded:
        # each row in the order padding, past, tokens
        is_token = F.pad(mask != 0, (past.shape[2], 0), value=True)
        order = is_token.to(torch.int64).argsort(dim=1, stable=True)
        inputs = inputs.gather(2, order[:, None].expand_as(inputs))
    out = F.conv1d(inputs, weight, bias, groups=weight.shape[0])
    if padded:
        places = (length - mask.sum(1, keepdim=True) + mask.cumsum(1) - 1).clamp(min=0)
        out = out.gather(2, places[:, None].expand_as(out))
    return F.silu(out) if silu else out, inputs[..., length:]
