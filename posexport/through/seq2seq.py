"""An encoder-decoder of transformers, as the two graphs of posexport's own ones.

Shape letters: B batch, T tokens of the decoder, S tokens of the encoder.
"""

import copy
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.checkpoints.config import Config
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.modules.in_parts import differ
from posexport.modules.live_module import source_of_module
from posexport.modules.user_module import UserModule, by_name
from posexport.modules.with_cache import small
from posexport.nn.cached_call import NotCachedError
from posexport.sources.definition_facts import model_of
from posexport.sources.source import Model, Source
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, InputSpec, LengthContract, Promises
from posexport.through import halves
from posexport.through.agreement import computed_by_ours
from posexport.through.tasks import Task
from posexport.through.wrapped import IDS, MASK, Wrapped, taken
from posexport.torch_fixes.module_precision import in_precision

#: rows, tokens of the encoder and of the decoder that both ways are compared at; and the longest decoder
_ROWS, _FAR, _LENGTH, _LONGEST = 3, 11, 9, 1025


class ThroughSeq2Seq(EncoderDecoderModel):
    """An encoder-decoder whose halves are transformers'."""

    @property
    def promises(self) -> Promises:
        """What is found by trial (`posexport.modules.live_module`), but that later tokens change no earlier one."""
        return Promises(padding_invariant=False, positional=None, causal=True)


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """The encoder-decoder ``model`` of a checkpoint, as two graphs.

    Raises:
        PosexportError: it has no encoder of texts, or a decoder that no cache goes through.
    """
    config = checkpoint.config
    kind = config.text("model_type")
    if not model.config.is_encoder_decoder:
        raise PosexportError(
            f"{config.label} says architectures = {type(model).__name__}, which is no encoder-decoder of texts; it is "
            "not converted through transformers"
        )
    inputs = _inputs(config, model)
    tokens = msgspec.structs.replace(inputs[0], name=halves.IDS, axes=[BATCH, SEQUENCE])
    whole = Wrapped(model, task.outputs, [*inputs, tokens], numbered=False).eval()
    own = computed_by_ours(config.label, whole)
    encoder = source_of_module(
        str(checkpoint.files.path), halves.EncoderCall(model, inputs), label=kind, fingerprint=b""
    )
    try:
        definition = _definition(encoder, model, tokens)
        pair = nn.ModuleList([definition, whole])
        wide = small(pair)
        trial = in_precision(copy.deepcopy(pair), torch.float64) if wide else pair
        _check(trial, torch.float64 if wide else torch.float32)
    except NotCachedError as err:
        raise PosexportError(
            f"{config.label}: {kind} cannot be converted for {task.name} through transformers: {err}"
        ) from err
    return model_of(definition, task.name, trial=encoder, remarks=own)


def _inputs(config: Config, model: Any) -> list[InputSpec]:
    """Those of the encoder."""
    settings, names = model.config.get_text_config(), taken(model.get_encoder())
    if not {IDS, MASK} <= names:
        raise PosexportError(
            f"{config.label}: the encoder of {type(model).__name__} takes {model.main_input_name}; posexport converts "
            "encoder-decoders of texts through transformers"
        )
    padding = settings.pad_token_id if isinstance(settings.pad_token_id, int) else 0
    ids = InputSpec(
        name=IDS,
        dtype="int64",
        axes=[BATCH, ENCODER_SEQUENCE],
        role="tokens",
        size=settings.vocab_size,
        padding=min(max(padding, 0), settings.vocab_size - 1),
    )
    return [ids, InputSpec(name=MASK, dtype="int64", axes=ids.axes, role="mask")]


def _definition(encoder: Source, model: Any, tokens: InputSpec) -> ThroughSeq2Seq:
    width, vocab = encoder.outputs[0].axes[-1], tokens.size
    assert isinstance(width, int)
    assert vocab is not None
    assert isinstance(encoder.module, UserModule)
    takes = halves.POSITIONS in taken(model)
    call = halves.DecoderCall(model, numbered=takes).eval()
    user = by_name(encoder.name, call, *halves.decoder_ports(vocab, tokens.padding, width))
    end = None if takes else halves.numbered(model, user)
    layers = halves.layers_of(user)
    if not any(layer.cross for layer in layers):
        raise NotCachedError("its attention is code of its own, which no KV cache of posexport's goes through")
    decoder = halves.ThroughHalf(user, layers)
    found = encoder.limits
    ends = [length for length in (found.max_length, end) if length is not None]
    limits = LengthContract(max_length=min(ends, default=None), trained_length=min(ends, default=None))
    return ThroughSeq2Seq(halves.ThroughEncoder(encoder.module, limits), decoder, nn.Identity(), shared=False).eval()


def _check(pair: nn.Module, dtype: torch.dtype) -> None:
    """Compare the logits of a definition with those of transformers' own forward, at once and in parts.

    Raises:
        NotCachedError: they differ, or padding on the left changes them.
    """
    assert isinstance(pair, nn.ModuleList)
    definition, whole = pair
    assert isinstance(definition, ThroughSeq2Seq)
    assert isinstance(whole, Wrapped)
    limit = definition.limits.max_length
    length = min(_LENGTH, limit or _LENGTH)
    parts = (length - 2, 1, 1) if length == _LENGTH else (1,) * length
    ids_BS, ids_BT = _ids(definition, min(_FAR, limit or _FAR)), _ids(definition, length)
    mask_BS = torch.ones_like(ids_BS)
    mask_BS[-1, -2:] = 0
    with torch.no_grad():
        want = _own(whole, ids_BS, mask_BS, ids_BT)
        whole_BT = torch.ones_like(ids_BT)
        for calls in ((length,), parts):
            if differ(_in_calls(definition, ids_BS, mask_BS, ids_BT, whole_BT, calls), want, whole_BT, dtype):
                raise NotCachedError(
                    "with a KV cache its logits are others than without, so something beside attention looks at other "
                    "tokens or counts them"
                )
        padded_BT = (torch.arange(length) >= torch.arange(_ROWS)[:, None].clamp(max=length - 1)).to(torch.int64)
        got = _in_calls(definition, ids_BS, mask_BS, ids_BT, padded_BT, parts)
        for row, mask_T in enumerate(padded_BT):
            alone_1T = ids_BT[row, mask_T != 0][None]
            alone = _own(whole, ids_BS[row : row + 1], mask_BS[row : row + 1], alone_1T)
            if differ(got[row, mask_T != 0][None], alone, torch.ones_like(alone_1T), dtype):
                raise NotCachedError("padding on the left of its decoder's tokens changes its logits")
        far_1T = _ids(definition, min(limit or _LONGEST, _LONGEST))[:1]
        ones_1T, first = torch.ones_like(far_1T), (ids_BS[:1], mask_BS[:1])
        got = _in_calls(definition, *first, far_1T, ones_1T, (far_1T.shape[1] - 1, 1))
        if differ(got, _own(whole, *first, far_1T), ones_1T, dtype):
            raise NotCachedError(f"at {far_1T.shape[1]} tokens, and not before, a KV cache changes its logits")


def _ids(definition: ThroughSeq2Seq, length: int) -> Tensor:
    """Random tokens, none of which is padding: some types number padding otherwise."""
    sizes = definition.decoder.config
    ids_BT = torch.randint(0, sizes.vocab - 1, (_ROWS, length), generator=torch.Generator().manual_seed(length))
    return ids_BT + (ids_BT >= sizes.padding_id).to(torch.int64)


def _own(whole: Wrapped, ids_BS: Tensor, mask_BS: Tensor, ids_BT: Tensor) -> Tensor:
    logits: Tensor = whole(**{IDS: ids_BS, MASK: mask_BS, halves.IDS: ids_BT})["logits"]
    return logits


def _in_calls(
    definition: ThroughSeq2Seq, ids_BS: Tensor, mask_BS: Tensor, ids_BT: Tensor, mask_BT: Tensor, parts: tuple[int, ...]
) -> Tensor:
    """The logits of all tokens, read in calls of so many new ones."""
    wiring, logits, end = definition.wiring, [], 0
    held: dict[str, Tensor] = {}
    outputs = [spec.name.replace("present", "past_key_values") for spec in definition.outputs]
    for new in parts:
        start, end = end, end + new
        given = {
            IDS: ids_BS,
            MASK: mask_BS,
            halves.IDS: ids_BT[:, start:end],
            "decoder_attention_mask": mask_BT[:, :end],
        }
        answers = dict(zip(outputs, definition(**given, **held), strict=True))
        logits.append(answers["logits"])
        held = {spec.name: answers[spec.name] for spec in wiring.past}
    return torch.cat(logits, 1)
