"""Multi-head attention with any position encoding of the catalogue, for models that people write themselves.

Vaswani et al., "Attention Is All You Need" (arXiv:1706.03762), section 3.2; KV heads as in Ainslie et al.
(arXiv:2305.13245). While a model is exported, attention becomes the same nodes as in a built-in model, so that every
lowering applies.

Shape letters: B batch, T tokens, S tokens attended to, P past tokens, H heads, G KV heads, D head size, C channels, M
slots of a static KV cache.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.nn import checks
from posexport.nn.attention import Scoring, additive
from posexport.nn.cached_call import NotCachedError, current
from posexport.nn.caching import Caching, DynamicCache, KeysAndValues, Reach, StaticCache
from posexport.nn.named_encoding import encoding_of
from posexport.nn.projections import EncodedAttention


class StaticKVCache(NamedTuple):
    """A KV cache of fixed capacity (M slots): ``key`` and ``value``, [B, G, M, D].

    The length of the mask says how many slots are used; what the others hold is not read.
    """

    key: Tensor
    value: Tensor


class Attention(EncodedAttention):
    """Multi-head attention with a position encoding: [B, T, C] to [B, T, C].

    Examples:
        >>> import torch
        >>> from posexport.nn import Attention
        >>> attention = Attention(60, 5, "shaw-kv", settings={"clip": 16}, causal=True)
        >>> attention(torch.randn(2, 7, 60)).shape
        torch.Size([2, 7, 60])
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        encoding: str | Encoding = "t5",
        *,
        settings: Mapping[str, Any] | None = None,
        causal: bool = False,
        kv_heads: int | None = None,
        head_size: int | None = None,
        context_hidden: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        """
        Args:
            hidden: channels of the input and the output.
            heads: attention heads.
            encoding: a name of ``posexport list encodings`` that acts in attention, or an ``Encoding``, which several
                layers may share (one T5 table for all layers: ``encoding=first.encoding``). ``nope``: none.
            settings: of the encoding, by name: ``{"max_distance": 64}``.
            causal: keys after the query are masked. Needed for a KV cache.
            kv_heads: KV heads, a divisor of ``heads`` (None: as many as ``heads``).
            head_size: channels of a head (None: ``hidden / heads``).
            context_hidden: channels of the context in cross attention (None: ``hidden``).
            bias: linear projections have a bias.
            scale: what scores are multiplied by (None: one over the square root of the head size; T5 itself: 1.0).
            dropout: the share of attention probabilities that training sets to 0.

        Raises:
            PosexportError: a size, an encoding or a setting that does not fit, in one sentence.
        """  # noqa: D205 (the class says what it is)
        kv_heads = heads if kv_heads is None else kv_heads
        checks.sizes(hidden=hidden, heads=heads, kv_heads=kv_heads)
        if heads % kv_heads:
            raise PosexportError(f"kv_heads must divide heads={heads}, got {kv_heads}")
        if head_size is None:
            if hidden % heads:
                raise PosexportError(
                    f"hidden must be a multiple of heads, got hidden={hidden}, heads={heads}; or give head_size"
                )
            head_size = hidden // heads
        context_hidden = hidden if context_hidden is None else context_hidden
        checks.sizes(head_size=head_size, context_hidden=context_hidden)
        if not 0 <= dropout < 1:
            raise PosexportError(f"dropout must be from 0 to below 1, got {dropout!r}")
        sizes = {"hidden": hidden, "heads": heads, "head_size": head_size}
        built = encoding_of(encoding, settings, sizes | ({"bidirectional": False} if causal else {}))
        super().__init__(hidden, heads, head_size, kv_heads=kv_heads, context_hidden=context_hidden, bias=bias)
        self.hidden, self.head_size, self.context_hidden = hidden, head_size, context_hidden
        self.causal = causal
        self.encoding, self.scoring = built, Scoring()
        self._check_encoding(by_name=isinstance(encoding, str))
        self.scale = (head_size * self.encoding.score_terms) ** -0.5 if scale is None else scale
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        *,
        context: Tensor | None = None,
        position_ids: Tensor | Positions | None = None,
        past: KeysAndValues | StaticKVCache | None = None,
    ) -> Tensor | tuple[Tensor, KeysAndValues | StaticKVCache]:
        """Attend to ``x`` itself, or to ``context``.

        A causal layer numbers tokens by the mask, so that padding on either side moves none; any other counts all of
        them from 0, as BERT does.

        Args:
            x: [B, T, C].
            attention_mask: over the tokens attended to, 1 for a token and 0 for padding (before the first token or
                after the last): [B, T], with ``past`` [B, P + T], with ``context`` [B, S]. None: nothing is padded.
            context: [B, S, context_hidden], for cross attention. Its tokens are counted from 0.
            position_ids: int64 [B or 1, T], each one more than the one before, as encodings of distances read them;
                or `Positions`, for example ``Positions.image(rows, columns)`` for an encoding of images.
            past: the KV cache of the tokens before, as `new_cache` or the call before returned it.

        Returns:
            [B, T, C]; with ``past``, that and the KV cache of all tokens.

        Raises:
            PosexportError: tensors or arguments that do not fit, in one sentence.
        """
        checks.channels("x", x, self.hidden)
        attended = x if context is None else context
        checks.mask(attention_mask, attended, causal=self.causal, cached=past is not None)
        if context is not None:
            if past is not None:
                raise PosexportError(
                    "past is for self-attention, whose tokens become keys; with a context leave it out"
                )
            return self._cross(x, context, attention_mask, position_ids)
        if self.context_hidden != self.hidden:
            raise PosexportError(f"this layer was made for a context of {self.context_hidden} channels; give context")
        # inside a decoder with a KV cache the call has the mask, the positions and the past
        call = current()
        if call is not None:
            if not self.causal or past is not None:
                raise NotCachedError(
                    "the posexport.nn.Attention layers of a decoder with a KV cache attend to their input with "
                    f"causal=True and without past, got causal={self.causal}{'' if past is None else ' and a past'}"
                )
            call.check("posexport.nn.Attention", attention_mask, position_ids)
            checks.length(self.encoding, call.mask_BS.shape[1])
            y_BTC, present = self._self(x, call.at, additive(call.mask_BS, x), call.past_of(self))
            call.present.append(present)
            return y_BTC
        if past is not None:
            return self._cached(x, attention_mask, position_ids, past)
        checks.length(self.encoding, x.shape[1])
        if isinstance(position_ids, Tensor):
            checks.consecutive(self.encoding, position_ids, attention_mask, x)
        if not self.causal or isinstance(position_ids, Positions) or attention_mask is None:
            at = checks.positions(position_ids, x)
            reach = Reach(at, at, Caching())
        else:
            reach = Reach.by_mask(attention_mask, x.shape[1], Caching(), position_ids)
        return self._self(x, reach, additive(attention_mask, x), None)[0]

    def new_cache(self, batch_size: int, capacity: int | None = None) -> KeysAndValues | StaticKVCache:
        """A KV cache without tokens, to begin with: dynamic, or static with ``capacity`` slots."""
        checks.sizes(batch_size=batch_size, **({} if capacity is None else {"capacity": capacity}))
        like = self.key.weight
        shape = (batch_size, self.kv_heads, capacity or 0, self.head_size)
        key, value = (torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        return (key, value) if capacity is None else StaticKVCache(key, value)

    def extra_repr(self) -> str:
        """Sizes that the submodules do not show."""
        kv = f", kv_heads={self.kv_heads}" if self.kv_heads != self.heads else ""
        return f"hidden={self.hidden}, heads={self.heads}{kv}, encoding={self.encoding.name}, causal={self.causal}"

    def _check_encoding(self, *, by_name: bool) -> None:
        encoding, name = self.encoding, self.encoding.name
        embeds = "embed" in encoding.hooks
        if embeds and not encoding.attention_hooks:
            raise PosexportError(
                f"{name} acts on the token embeddings, not in attention: put posexport.nn.InputEncoding(hidden, "
                f"{name!r}) behind the embedding, and encoding='nope' here"
            )
        if embeds and by_name:
            raise PosexportError(
                f"{name} acts on the token embeddings and in attention: positions = posexport.nn.InputEncoding(hidden, "
                f"{name!r}, heads=heads) behind the embedding, and encoding=positions.encoding here"
            )
        if encoding.causal and not self.causal:
            raise PosexportError(f"{name} makes sense only where keys after the query are masked: give causal=True")
        if encoding.reads_input and self.heads * self.head_size != self.hidden:
            raise PosexportError(
                f"{name} reads the attention's input head by head, so head_size must be hidden / heads; got "
                f"hidden={self.hidden}, heads={self.heads}, head_size={self.head_size}"
            )

    def _self(
        self, x_BTC: Tensor, at: Reach, mask_B11S: Tensor | None, past: KeysAndValues | None
    ) -> tuple[Tensor, KeysAndValues]:
        """Self-attention, causal or not, and keys and values of ``past`` and new tokens as the cache keeps them."""
        q_BHTD = self.encoding.rotate(self.queries(x_BTC), at.queries, "query")
        cached = at.kept(self.encoding, self.keys(x_BTC), self.values(x_BTC), past)
        y_BTC = self._attend(x_BTC, q_BHTD, cached.keys, cached.values, mask_B11S, at.queries, at.keys, cached.buffers)
        return y_BTC, cached.present

    def _cross(
        self,
        x_BTC: Tensor,
        context_BSC: Tensor,
        mask_BS: Tensor | None,
        position_ids: Tensor | Positions | None,
    ) -> Tensor:
        if self.causal:
            raise PosexportError("a context has no order in common with x: make the layer with causal=False")
        if current() is not None and self.encoding.attention_hooks:
            raise NotCachedError(
                f"cross attention in a decoder with a KV cache cannot have the encoding {self.encoding.name}: the "
                "context is read again in every call; make it with encoding='nope'"
            )
        checks.channels("context", context_BSC, self.context_hidden)
        for tensor in (x_BTC, context_BSC):
            checks.length(self.encoding, tensor.shape[1])
        queries = checks.positions(position_ids, x_BTC)
        if isinstance(position_ids, Tensor):
            checks.same_rows(self.encoding, position_ids)
            queries = Positions(queries.ids_BT, position_ids[0])
        keys = Positions.counted(context_BSC.shape[1], context_BSC.device)
        q_BHTD = self.encoding.rotate(self.queries(x_BTC), queries, "query")
        k_BGSD, v_BGSD = self.encoding.rotate(self.keys(context_BSC), keys, "key"), self.values(context_BSC)
        return self._attend(x_BTC, q_BHTD, k_BGSD, v_BGSD, additive(mask_BS, x_BTC), queries, keys, None)

    def _cached(
        self,
        x_BTC: Tensor,
        mask_BS: Tensor | None,
        position_ids: Tensor | Positions | None,
        past: KeysAndValues | StaticKVCache,
    ) -> tuple[Tensor, KeysAndValues | StaticKVCache]:
        if not self.causal:
            raise PosexportError("past is for causal attention: tokens of before would have to see the new ones")
        if isinstance(position_ids, Positions):
            raise PosexportError("with past, position_ids must be a tensor [B, T] of the new tokens' positions")
        static = isinstance(past, StaticKVCache)
        if static and mask_BS is None:
            raise PosexportError(
                "a static KV cache needs attention_mask [B, P + T]: its length says how many slots are used"
            )
        checks.cache(past, (x_BTC.shape[0], self.kv_heads, self.head_size), mask_BS, x_BTC.shape[1], static=static)
        caching = Caching(StaticCache() if static else DynamicCache())
        key, value = past
        all_BS = caching.cache.mask(x_BTC[..., 0].to(torch.int64), mask_BS, [(key, value)])
        checks.length(self.encoding, all_BS.shape[1])
        reach = Reach.by_mask(all_BS, x_BTC.shape[1], caching, position_ids)
        y_BTC, present = self._self(x_BTC, reach, additive(mask_BS, x_BTC), (key, value))
        return y_BTC, StaticKVCache(*present) if static else present

    def _attend(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BGSD: Tensor,
        v_BGSD: Tensor,
        mask_B11S: Tensor | None,
        queries: Positions,
        keys: Positions,
        buffers: KeysAndValues | None,
    ) -> Tensor:
        options: dict[str, Any] = {"causal": (queries, keys) if self.causal else None, "buffers": buffers}
        dropout = self.dropout.p if self.training else 0.0
        return self.attended(x_BTC, q_BHTD, k_BGSD, v_BGSD, mask_B11S, queries, keys, dropout=dropout, **options)
