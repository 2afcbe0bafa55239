"""A user's decoder made of `posexport.nn.Attention`, with a KV cache that its author did not write.

The user's ``forward(input_ids, attention_mask)`` returns logits [B, T, V] and knows nothing of a cache.
`posexport.nn.cached_call` threads one through its causal attention layers, in the order in which they are called; all
else in the model must treat every token by itself, which is tried before anything is exported.

Shape letters: B batch, G KV heads, P past tokens, T new tokens, S past and new tokens, D head size, V vocabulary.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import torch
from torch import Tensor, nn

from posexport.encodings.encoding import HOOKS, Encoding
from posexport.errors import PosexportError
from posexport.models.definition import Definition
from posexport.models.envelope import reads_numbers
from posexport.nn import Attention, InputEncoding
from posexport.nn.cached_call import CachedCall, NotCachedError, cached_call
from posexport.nn.caching import Caching
from posexport.nn.named_encoding import acts_through
from posexport.nn.reach import Reach
from posexport.sources import mapped
from posexport.sources.length_search import LONGEST, search
from posexport.sources.source import Source
from posexport.sources.user_module import UserModule, in_precision, raised
from posexport.spec import BATCH, SEQUENCE, TOTAL, Axis, EncodingSpec, InputSpec, LengthContract, OutputSpec, ProofPlan

TASK = "text-generation"
_IDS, _MASK, _NUMBERS = "input_ids", "attention_mask", "position_ids"
#: rows and tokens that a module is tried with before it is exported
_ROWS, _LENGTH = 3, 9
#: of the largest logit: what two ways to compute it may differ by
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


class OwnDecoder(Definition):
    """New tokens and the cache of the ones before, to logits and the cache of all: a user's module, as a definition.

    ``paths``: of the attention layers, in the order in which ``user`` calls them; a layer that is called twice, twice.
    """

    ordered = True
    causal = True

    def __init__(
        self, user: UserModule, paths: Sequence[str], tokens: InputSpec, vocab: int, envelope: LengthContract
    ) -> None:
        super().__init__()
        self.user = user
        #: how past tokens are kept; `posexport.sources.cached` changes it
        self.caching = Caching()
        self._paths, self._tokens, self._vocab, self._envelope = list(paths), tokens, vocab, envelope
        self._takes = frozenset(spec.name for spec in user.inputs)

    @property
    def layers(self) -> list[Attention]:
        """The attention layers, in the order in which they are called."""
        modules = [self.user.module.get_submodule(path) for path in self._paths]
        return [layer for layer in modules if isinstance(layer, Attention)]

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer."""
        return self.encodings[0]

    @property
    def encodings(self) -> list[Encoding]:
        """Of every layer; where a layer has none, what acts on the token embeddings."""
        inputs = [part.encoding for part in self.user.module.modules() if isinstance(part, InputEncoding)]
        return [
            inputs[0] if inputs and not acts_through(layer.encoding, *HOOKS) else layer.encoding
            for layer in self.layers
        ]

    @property
    def _all_encodings(self) -> list[Encoding]:
        return [part for part in self.user.module.modules() if isinstance(part, Encoding)]

    @property
    def shift_invariant(self) -> bool:
        """Tokens are numbered by the mask: padding on the left moves none."""
        return True

    @property
    def padding_invariant(self) -> bool:
        """Padding on the right changes nothing in any layer."""
        return all(encoding.padding_invariant for encoding in self._all_encodings)

    @property
    def envelope(self) -> LengthContract:
        """A limit is about past and new tokens together."""
        return msgspec.structs.replace(
            self._envelope,
            cached=True,
            length_dependent=any(encoding.length_dependent for encoding in self._all_encodings),
        )

    @property
    def plan(self) -> ProofPlan:
        """Sizes to trace at, for the cache."""
        return ProofPlan(traced=self.caching.cache.traced)

    @property
    def inputs(self) -> list[InputSpec]:
        """Ids of the new tokens, the mask of past and new ones, the past's cache, positions where they matter."""
        mask = InputSpec(name=_MASK, dtype="int64", axes=[BATCH, TOTAL], role="mask")
        past = [
            InputSpec(name=name, dtype="float32", axes=axes, role="cache")
            for name, axes in self._cache("past_key_values", self.caching.cache.past_axis)
        ]
        numbered = _NUMBERS in self._takes or any(reads_numbers(encoding) for encoding in self._all_encodings)
        size = self._envelope.limit
        numbers = InputSpec(name=_NUMBERS, dtype="int64", axes=[BATCH, SEQUENCE], role="positions", size=size)
        return [self._tokens, mask, *past, *([numbers] if numbered else [])]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Logits over the vocabulary; keys and values of all tokens."""
        present = self._cache("present", self.caching.cache.present_axis)
        logits = OutputSpec(name="logits", axes=[BATCH, SEQUENCE, self._vocab])
        return [logits, *(OutputSpec(name=name, axes=axes) for name, axes in present)]

    def _cache(self, name: str, length: str) -> list[tuple[str, list[Axis]]]:
        return [
            (f"{name}.{index}.{what}", [BATCH, layer.kv_heads, length, layer.head_size])
            for index, layer in enumerate(self.layers)
            for what in ("key", "value")
        ]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """``past_key_values``: keys and values of every layer in turn; ``named``: the same, by the inputs' names."""
        held = [*past_key_values, *named.values()]
        past = list(zip(held[::2], held[1::2], strict=True)) or None
        mask_BS = self.caching.cache.mask(input_ids, attention_mask, past)
        at = Reach.by_mask(mask_BS, input_ids.shape[1], self.caching, position_ids)
        tensors = {_IDS: input_ids, _MASK: mask_BS[:, at.queries.slots_T], _NUMBERS: at.queries.ids_BT}
        with cached_call(CachedCall(at, mask_BS, past)) as call:
            (logits,) = self.user(**{name: value for name, value in tensors.items() if name in self._takes})
        # a tracer puts proxies in the place of modules
        traced = torch.compiler.is_compiling()
        if not traced and [id(layer) for layer in call.layers] != [id(layer) for layer in self.layers]:
            raise PosexportError(
                "forward calls its posexport.nn.Attention layers in another order than in its first call; it must call "
                "the same ones for every input"
            )
        return (logits, *(tensor for pair in call.present for tensor in pair))

    @property
    def takes_mask(self) -> bool:
        """Whether the user's forward knows of padding."""
        return _MASK in self._takes

    def plain(self, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """The logits of the user's forward itself, in one call without a cache."""
        numbers_BT = Reach.by_mask(mask_BT, ids_BT.shape[1], Caching()).queries.ids_BT
        tensors = {_IDS: ids_BT, _MASK: mask_BT, _NUMBERS: numbers_BT}
        logits: Tensor
        (logits,) = self.user(**{name: value for name, value in tensors.items() if name in self._takes})
        return logits


def with_cache(source: Source, task: str | None) -> Source:
    """A user's module as a decoder with a KV cache, where it is one; any other source as it is.

    ``task``: ``text-generation`` insists on it, ``features`` leaves the module as it is; None decides by what it is: a
    module with causal attention layers that returns logits over the rows of its own embedding.

    Raises:
        PosexportError: what keeps the module from having a cache, in one sentence.
    """
    user = source.module
    if not isinstance(user, UserModule) or task == "features":
        return source
    if task not in (None, TASK):
        raise PosexportError(f"{source.name} is a module of your own: the task must be {TASK} or features, got {task}")
    if task is None and not _is_vocabulary(source.outputs[0], user.module):
        return source
    reason = _unfit(source, user)
    paths: list[str] = []
    if not reason:
        try:
            paths = _called(user)
        except NotCachedError as err:
            reason = str(err)
    if reason and task is None:
        remark = f"converted for features, without a KV cache: {reason}"
        causal = any(isinstance(part, Attention) and part.causal for part in user.module.modules())
        return replace(source, remarks=[*source.remarks, remark]) if causal else source
    if reason:
        raise PosexportError(f"{source.name} cannot be converted for {TASK}: {reason}")
    decoder = _decoder(source, user, paths)
    if task is None:
        remark = f"converted for {TASK}: a KV cache goes through its {len(paths)} causal attention layers"
        return replace(decoder, remarks=[*decoder.remarks, f"{remark}; the task features leaves it out"])
    return decoder


def _unfit(source: Source, user: UserModule) -> str:
    """Why a module is no decoder with a cache, by what it takes, gives and holds; nothing where it may be one."""
    if not any(isinstance(part, Attention) and part.causal for part in user.module.modules()):
        return "it has no posexport.nn.Attention with causal=True"
    names = [spec.name for spec in source.inputs]
    if _IDS not in names or not set(names) <= {_IDS, _MASK, _NUMBERS}:
        return f"its inputs must be {_IDS}, and may be {_MASK} and {_NUMBERS}; got {', '.join(names)}"
    if any(spec.axes != [BATCH, SEQUENCE] or spec.dtype != "int64" for spec in source.inputs):
        return f"its inputs must be int64 [{BATCH}, {SEQUENCE}]"
    axes = source.outputs[0].axes
    if len(source.outputs) != 1 or len(axes) != 3 or axes[:2] != [BATCH, SEQUENCE] or not isinstance(axes[2], int):
        shown = "; ".join(f"{spec.name} [{', '.join(map(str, spec.axes))}]" for spec in source.outputs)
        return f"it must return logits [{BATCH}, {SEQUENCE}, vocabulary] alone, got {shown}"
    return ""


def _is_vocabulary(logits: OutputSpec, module: nn.Module) -> bool:
    """Whether an output is called logits, or has as many channels as an embedding has rows."""
    return logits.name == "logits" or logits.axes[-1] in _rows(module)


def _rows(module: nn.Module) -> set[int]:
    return {part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)}


def _called(user: UserModule) -> list[str]:
    """The paths of the attention layers, in the order in which forward calls them."""
    module = copy.deepcopy(user.module) if _small(user) else user.module
    mask_11 = torch.ones((1, 1), dtype=torch.int64)
    call = CachedCall(Reach.by_mask(mask_11, 1, Caching()), mask_11, None)
    tensors = {_IDS: torch.zeros_like(mask_11), _MASK: mask_11, _NUMBERS: call.at.queries.ids_BT}
    with torch.no_grad(), cached_call(call):
        module(**{spec.name: tensors[spec.name] for spec in user.inputs})
    if not call.layers:
        raise NotCachedError("forward calls no posexport.nn.Attention")
    paths = {id(part): path for path, part in module.named_modules()}
    return [paths[id(layer)] for layer in call.layers]


def _small(module: nn.Module) -> bool:
    """Whether there is memory for a copy in float64 without asking."""
    return mapped.size_of(module.parameters()) <= mapped.LARGE


def _decoder(source: Source, user: UserModule, paths: Sequence[str]) -> Source:
    vocab = source.outputs[0].axes[2]
    assert isinstance(vocab, int)
    tokens = next(spec for spec in source.inputs if spec.name == _IDS)
    if vocab in _rows(user.module):  # an example need not hold the last id
        tokens = msgspec.structs.replace(tokens, size=vocab)
    envelope, remarks = source.envelope, list(source.remarks)
    if any(spec.name == _NUMBERS for spec in source.inputs):
        envelope, remarks = _numbered(OwnDecoder(user, paths, tokens, vocab, envelope).eval(), remarks)
    decoder = OwnDecoder(user, paths, tokens, vocab, envelope).eval()
    if reason := _misfit(decoder):
        raise PosexportError(
            f"{source.name} cannot have a KV cache: {reason}; or convert it for the task features, without a cache"
        )
    encodings = [EncodingSpec(name=each.name, parameters=dict(each.parameters_given)) for each in decoder.encodings]
    further = [length for length in source.plan.further if envelope.limit is None or length <= envelope.limit]
    return replace(
        source,
        module=decoder,
        inputs=decoder.inputs,
        outputs=decoder.outputs,
        envelope=decoder.envelope,
        encoding=encodings[0],
        encodings=encodings if any(each != encodings[0] for each in encodings) else [],
        task=TASK,
        promises=decoder.promises,
        plan=msgspec.structs.replace(decoder.plan, further=further),
        remarks=remarks,
    )


def _numbered(decoder: OwnDecoder, remarks: list[str]) -> tuple[LengthContract, list[str]]:
    """The envelope of a module that takes position_ids, whose own table may end where some number is too large."""
    envelope = decoder.envelope

    def attempt(length: int) -> str:
        ids_1T = torch.zeros((1, length), dtype=torch.int64)
        try:
            with torch.no_grad():
                decoder.plain(ids_1T, torch.ones_like(ids_1T))
        except PosexportError as err:
            return raised(err.__cause__ or err)
        return ""

    try:
        end = search(attempt, 1, envelope.limit or LONGEST)
    except MemoryError:  # how far it may go is not known
        return envelope, remarks
    if end.limit is None or end.limit == envelope.limit:
        return envelope, remarks
    remark = (
        f"inputs of at most {end.limit} tokens are accepted, longer ones are refused: with the {_NUMBERS} of "
        f"{end.limit + 1} tokens the module raised {end.reason}"
    )
    boundaries = sorted({*(b for b in envelope.boundaries if b < end.limit), end.limit})
    return msgspec.structs.replace(envelope, limit=end.limit, boundaries=boundaries), [*remarks, remark]


def _misfit(decoder: OwnDecoder) -> str:
    """Why the module computes something else with a cache than without; nothing where it computes the same."""
    limit, size = decoder.envelope.limit or _LENGTH, decoder.inputs[0].size or 1
    length = min(_LENGTH, limit)
    trial, least = decoder, _ROUNDING[torch.float32]
    if _small(decoder):
        trial, least = copy.deepcopy(decoder), _ROUNDING[torch.float64]
        in_precision(trial, torch.float64)
    ids_BT = torch.randint(0, size, (_ROWS, length), generator=torch.Generator().manual_seed(0))
    whole_BT = torch.ones_like(ids_BT)
    # rows of different lengths, each at its end
    padded_BT = (torch.arange(length) >= torch.arange(_ROWS)[:, None].clamp(max=length - 1)).to(torch.int64)

    def differs(a: Tensor, b: Tensor, mask_BT: Tensor) -> bool:
        real = mask_BT != 0
        return float((a[real] - b[real]).abs().max()) > least * float(b[real].abs().max())

    with torch.no_grad():
        for mask_BT in (whole_BT, padded_BT) if trial.takes_mask else (whole_BT,):
            cached = trial(ids_BT, mask_BT)[0]
            if differs(cached, trial.plain(ids_BT, mask_BT), mask_BT):
                if mask_BT is whole_BT:
                    return "its logits are others when its attention layers take their positions from the cache"
                return (
                    "padding on the left changes its logits: hand the attention_mask of forward on to every "
                    "posexport.nn.Attention and posexport.nn.InputEncoding"
                )
        if length > 2 and not decoder.envelope.length_dependent:
            parts = (length - 2, 1, 1)
            if differs(_in_calls(trial, ids_BT, whole_BT, parts), trial(ids_BT, whole_BT)[0], whole_BT):
                return (
                    "read in parts it gives other logits than read at once, so something beside posexport.nn.Attention "
                    "looks at other tokens or counts them (a convolution, positions from torch.arange); number tokens "
                    "with posexport.nn.InputEncoding, or let forward take position_ids"
                )
    return ""


def _in_calls(decoder: OwnDecoder, ids_BT: Tensor, mask_BT: Tensor, parts: Sequence[int]) -> Tensor:
    """The logits of all tokens, read in calls of so many new ones."""
    held: tuple[Tensor, ...] = ()
    logits, end = [], 0
    for new in parts:
        start, end = end, end + new
        new_BTV, *present = decoder(ids_BT[:, start:end], mask_BT[:, :end], held)
        logits.append(new_BTV)
        held = tuple(present)
    return torch.cat(logits, 1)
