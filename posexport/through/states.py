"""Replacements for the functions of transformers' layers with a state between tokens, for the duration of a call.

Most of these layers call a causal convolution and a recurrence, which are functions of the modeling file; in two types
the recurrence is part of a layer's forward. `keeping` replaces these functions and forwards for the duration of a call:
they read their state from posexport and store the next state there, in call order. Without transformers' cache object
the layers do not use their branches for single tokens, so that one function serves calls of any length.

Padding does not change a state: the convolution skips it, and the recurrence gets a decay and an update of 0.
transformers multiplies the hidden states of padding by 0 before a projection, which may have a bias; this mask is
removed.

Shape letters: B batch, T tokens, H heads, G groups of heads, K key size, V value size, C channels, W taps of a
convolution.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.graph.ops.states import convolution, recurrence
from posexport.nn.cached_call import current
from posexport.nn.calling import carried, carrying
from posexport.nn.layer_states import CONV, RECURRENT, States
from posexport.sources.torch_fixes.patch import patched
from posexport.through import query_bias


@contextmanager
def keeping(model: nn.Module, past: Mapping[str, Sequence[Tensor]] | None = None) -> Iterator[States]:
    """Inside the block, layers of ``model`` read their states from ``past`` and leave them in the result."""
    with carrying(States(past), States) as states, ExitStack() as stack:
        for file in files_of(model):
            for name in _FUNCTIONS.keys() & vars(file).keys():
                stack.enter_context(patched(file, name, _FUNCTIONS[name]))
            for name in _FORWARDS.keys() & vars(file).keys():
                stack.enter_context(patched(vars(file)[name], "forward", _FORWARDS[name]))
        yield states


@contextmanager
def masks_as_given(model: nn.Module) -> Iterator[None]:
    """Inside the block, outside `keeping`, layers with states use the padding mask of the call as their mask.

    transformers removes a mask if its values show no padding, which cannot be traced. MiniMax has tables of powers of
    its decay, which are float32 even in a float64 module: they are recomputed.
    """
    with ExitStack() as stack:
        if carried(States) is None:
            for file in files_of(model):
                if _MASK_FUNCTION in vars(file):
                    stack.enter_context(patched(file, _MASK_FUNCTION, lambda attention_mask=None, **_: attention_mask))
                if (layer := vars(file).get("MiniMaxLightningAttention")) is not None:
                    for at, name in enumerate(("query_decay", "key_decay", "diagonal_decay")):
                        setattr(layer, name, property(partial(_decay_factors, at=at)))  # before the buffer of the name
                        stack.callback(delattr, layer, name)
        yield


def _decay_factors(layer: Any, at: int) -> Tensor:
    factors: Tensor = layer.decay_factors(layer.slope_rate)[at]
    return factors


def files_of(model: nn.Module) -> list[ModuleType]:
    """transformers' Python modules that define the classes of ``model``."""
    names = dict.fromkeys(type(part).__module__ for part in model.modules())
    return [sys.modules[name] for name in names if name.startswith("transformers.models.")]


def _states() -> States:
    states = carried(States)
    assert states is not None
    return states


def _mask(x: Tensor, length: int) -> Tensor:
    """The mask [B, T] of the new tokens: 1 at tokens and 0 at padding."""
    call = current()
    if call is None:
        return x.new_ones(x.shape[0], length, dtype=torch.int64)
    return call.mask_BS[:, call.at.queries.slots_T]


def _of_tokens(x: Tensor, axis: int = 1) -> Tensor:
    """``x`` with 0 at padding; ``axis`` is the axis of tokens."""
    shape = [x.shape[at] if at in (0, axis) else 1 for at in range(x.ndim)]
    return x * _mask(x, x.shape[axis]).reshape(shape).to(x.dtype)


def _causal_conv(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """``causal_conv1d_fn``: hidden_states [B, C, T], weight [C, W]."""
    states, (batch, channels, length) = _states(), hidden_states.shape
    past = states.before(CONV, (batch, channels, weight.shape[-1] - 1), hidden_states)
    silu = activation in ("silu", "swish")
    x = hidden_states.to(weight.dtype)
    out, present = convolution(x, weight[:, None], bias, past.to(x.dtype), _mask(x, length), silu=silu)
    states.present[CONV].append(present.to(past.dtype))
    if activation is not None and not silu:
        from transformers.activations import ACT2FN

        out = ACT2FN[activation](out)
    return out.to(hidden_states.dtype)


def _recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    states = _states()
    past = states.before(RECURRENT, (v.shape[0], v.shape[2], k.shape[3], v.shape[3]), v)
    out, present = recurrence(q, k, v, past.to(v.dtype), decay, beta, scale)
    states.present[RECURRENT].append(present)
    return out


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Repeat heads: [B, T, G, K] to [B, T, H, K]; heads of a group are adjacent."""
    groups = x.shape[2]
    return x if groups == heads else x[:, :, :, None].expand(-1, -1, -1, heads // groups, -1).flatten(2, 3)


def _delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *_: Any,
    use_qk_l2norm_in_kernel: bool = False,
    **__: Any,
) -> tuple[Tensor, None]:
    """``torch_chunk_gated_delta_rule``, and ``chunk_kimi_delta_attention``, where ``g`` is [B, T, H, K]."""
    heads = value.shape[2]
    q, k, v, decay, strength = (x.float() for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k = _repeated(q, heads), _repeated(k, heads)
    out = _recurrence(q, k, v, _of_tokens(decay), _of_tokens(strength), q.shape[-1] ** -0.5)
    return out.to(query.dtype), None


def _step_sizes(dt: Tensor, bias: Tensor | None, *, softplus: bool) -> Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return F.softplus(dt) if softplus else dt


def _mamba2(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *_: Any,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **__: Any,
) -> Tensor:
    """``mamba2_chunk_scan``: hidden_states [B, T, H, V], dt [B, T, H], A [H], B and C [B, T, G, K]."""
    heads = hidden_states.shape[2]
    dt = _step_sizes(dt, dt_bias, softplus=dt_softplus)
    if tuple(dt_limit) != (0.0, float("inf")) or not dt_softplus:  # a softplus is never negative
        dt = dt.clamp(*dt_limit)
    dt = _of_tokens(dt.float())
    x, k, q = hidden_states.float(), _repeated(B.float(), heads), _repeated(C.float(), heads)
    out = _recurrence(q, k, x * dt[..., None], dt * A.float())
    # a caller may call view
    return (out if D is None else out + x * D[..., None]).contiguous()


def _mamba(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> Tensor:
    """``mamba_selective_scan``: hidden_states and dt [B, C, T], A [C, K], B and C [B, K, T].

    Every channel is a head with one value; the decay differs by key.
    """
    bias = None if delta_bias is None else delta_bias[:, None]
    dt = _of_tokens(_step_sizes(dt, bias, softplus=delta_softplus).float(), axis=2).transpose(1, 2)
    x, channels = hidden_states.float().transpose(1, 2), hidden_states.shape[1]
    k, q = (_repeated(each.float().transpose(1, 2)[:, :, None], channels) for each in (B, C))
    out = _recurrence(q, k, (x * dt)[..., None], dt[..., None] * A)[..., 0].transpose(1, 2)
    out = out if D is None else out + hidden_states * D[:, None]
    return out if z is None else out * F.silu(z)


def _lightning_attention(layer: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """The forward of ``MiniMaxLightningAttention``: the decay of a head is the same at every token."""
    heads = layer.num_attention_heads
    qkv = layer.act_fn(layer.qkv_proj(hidden_states)).reshape(*hidden_states.shape[:2], heads, 3 * layer.head_dim)
    q, k, v = qkv.split(layer.head_dim, -1)
    decay = -layer.slope_rate.to(v.dtype).reshape(1, 1, heads).expand(*v.shape[:3])
    out = _recurrence(q, k, _of_tokens(v), _of_tokens(decay)).flatten(2)
    return layer.out_proj(torch.sigmoid(layer.output_gate(hidden_states)) * layer.norm(out)), None


def _rg_lru(layer: Any, input_states: Tensor, position_ids: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """The forward of ``RecurrentGemmaRecurrentBlock`` (Griffin, arXiv:2402.19427, equations 1 to 4).

    Every channel is a head with one value and one key, which is 1.
    """
    unit, conv = layer.rg_lru, layer.conv_1d
    x = _causal_conv(layer.linear_x(input_states).transpose(1, 2), conv.weight[:, 0], conv.bias).transpose(1, 2)
    blocks = x.reshape(*x.shape[:2], unit.num_attention_heads, 1, unit.block_width)

    def gate(weight: Tensor, bias: Tensor) -> Tensor:
        """The sigmoid of a product with a block-diagonal matrix, [B, T, C]."""
        return torch.sigmoid((blocks @ weight)[..., 0, :] + bias).flatten(2)

    strength = gate(unit.recurrent_gate_weight, unit.recurrent_gate_bias)
    decay = (-8.0 * strength * F.softplus(unit.recurrent_param)).float()
    # the first token of a row is not scaled
    scale = torch.where(position_ids[..., None] == 0, 1.0, (1 - (2 * decay).exp()).sqrt())
    update = x.float() * gate(unit.input_gate_weight, unit.input_gate_bias).float() * scale
    key = torch.ones_like(update)[..., None]
    out = _recurrence(key, key, _of_tokens(update)[..., None], _of_tokens(decay))[..., 0].to(x.dtype)
    return layer.linear_out(out * layer.act_fn(layer.linear_y(input_states))), None


#: functions of transformers' modeling files that compute with a state
_STATEFUL: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _causal_conv,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2,
    "mamba_selective_scan": _mamba,
}
#: layers with a forward that contains the recurrence, or that counts positions
_FORWARDS: dict[str, Callable[..., Any]] = {
    "MiniMaxLightningAttention": _lightning_attention,
    "RecurrentGemmaRecurrentBlock": _rg_lru,
    query_bias.BIAS_CLASS: query_bias.relative_logits,
}
_MASK_FUNCTION = "create_recurrent_attention_mask"
_FUNCTIONS: dict[str, Callable[..., Any]] = {**_STATEFUL, _MASK_FUNCTION: lambda **_: None}
