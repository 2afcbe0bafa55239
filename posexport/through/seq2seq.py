"""Exports an encoder-decoder of transformers as two graphs, an encoder and a decoder with a KV cache.

Shape letters: B batch, T tokens of the decoder, S tokens of the encoder.
"""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SAMPLES,
    SEQUENCE,
    InputSpec,
    LengthContract,
    Limits,
    Promises,
    ProofPlan,
)
from posexport.base.tasks.task import Task
from posexport.checkpoints.config import Config
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.modules.decoder_facts import small
from posexport.modules.in_parts import differ
from posexport.modules.live_module import source_of_module
from posexport.modules.user_module import UserModule, by_name
from posexport.nn.cached_call import NotCachedError
from posexport.sources.example import example
from posexport.sources.source import Model, Source, model_of
from posexport.sources.torch_fixes.default_dtype import computing_in
from posexport.sources.torch_fixes.module_precision import in_precision
from posexport.through import halves
from posexport.through.agreement import use_posexport_attention
from posexport.through.inputs import IDS, MASK, PIXELS, SOUND, forward_parameters, inputs_of
from posexport.through.module import LONG, TransformersModule


class _Captioner(nn.Module):
    """BLIP's image encoder and decoder of texts (arXiv:2201.12086) as an encoder-decoder of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def get_encoder(self) -> nn.Module:
        encoder: nn.Module = self.model.vision_model
        return encoder

    def get_decoder(self) -> nn.Module:
        decoder: nn.Module = self.model.text_decoder
        return decoder

    def forward(
        self,
        decoder_input_ids: Tensor,
        pixel_values: Tensor | None = None,
        encoder_outputs: Any = None,
        decoder_attention_mask: Tensor | None = None,
        **others: Any,
    ) -> Any:
        states = encoder_outputs or self.model.vision_model(pixel_values=pixel_values, return_dict=True)
        return self.model.text_decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            # no parameter of its own: they are rows of the text decoder's table, whose length `_definition` then reads
            position_ids=others.get(halves.POSITIONS),
            encoder_hidden_states=states.last_hidden_state,
            use_cache=False,
            return_dict=True,
        )


#: batch size and lengths of the comparison with transformers, and the longest decoder input that is compared
_ROWS, _ENCODER_LENGTH, _DECODER_LENGTH, _LONGEST = 3, 11, 9, 1025


class ThroughSeq2Seq(EncoderDecoderModel):
    """An encoder-decoder with transformers' encoder and decoder.

    Attributes:
        sound: lengths in samples that the encoder accepts, and those of the proof; None if its input is not audio.
    """

    sound: Limits | None = None

    @property
    def limits(self) -> LengthContract:
        limits = super().limits
        if self.sound is None:
            return limits
        return msgspec.structs.replace(limits, min_sizes=self.sound.min_sizes, max_sizes=self.sound.max_sizes)

    @property
    def plan(self) -> ProofPlan:
        proof_plan = super().plan
        if self.sound is None:
            return proof_plan
        traced = {**proof_plan.trace_sizes, **self.sound.trace_sizes}
        return msgspec.structs.replace(
            proof_plan,
            proof_sizes=self.sound.proof_sizes,
            elements_per_token=self.sound.elements_per_token,
            trace_sizes=traced,
        )

    @property
    def promises(self) -> Promises:
        """The promises of any module (`posexport.modules.live_module`), and causality."""
        return Promises(padding_invariant=False, positional=None, causal=True)


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """Split the encoder-decoder ``model`` of a checkpoint into two graphs.

    Raises:
        PosexportError: the encoder's input is not text, an image or raw audio, or the decoder cannot have a KV cache.
    """
    config = checkpoint.config
    kind = config.text("model_type")
    if hasattr(model, "text_decoder") and hasattr(model, "vision_model"):
        model = _Captioner(model).eval()
    elif not model.config.is_encoder_decoder:
        raise PosexportError(
            f"{config.label} says architectures = {type(model).__name__}, which is no encoder-decoder of texts; it is "
            "not converted through transformers"
        )
    # posexport's attention, and the encoder as a source
    inputs = _inputs(config, model)
    tokens = _tokens(model, halves.IDS, SEQUENCE)
    whole = TransformersModule(model, task.outputs, [*inputs, tokens], with_positions=False).eval()
    remarks = use_posexport_attention(config.label, whole, encoder_apart=True)
    call = halves.EncoderCall(model, inputs).eval()
    of_sound = _example_of_sound(model, inputs)
    encoder = source_of_module(str(checkpoint.files.path), call, *of_sound, label=kind, fingerprint=b"")
    # the decoder with a KV cache; its logits are compared in float64 if memory allows a copy
    try:
        definition = _definition(encoder, model, tokens)
        pair = nn.ModuleList([definition, whole])
        wide = small(pair)
        compared = in_precision(copy.deepcopy(pair), torch.float64) if wide else pair
        _check_logits(compared, torch.float64 if wide else torch.float32)
    except NotCachedError as err:
        raise PosexportError(
            f"{config.label}: {kind} cannot be converted for {task.name} through transformers: {err}"
        ) from err
    return model_of(definition, task.name, trial=encoder, remarks=remarks)


def _inputs(config: Config, model: Any) -> list[InputSpec]:
    """The inputs of the encoder: token ids, an image, or raw audio with a mask of its samples."""
    encoder = model.get_encoder()
    names = forward_parameters(encoder)
    if PIXELS in names:
        return inputs_of(config.label, encoder)
    if SOUND in names:
        sound = inputs_of(config.label, encoder)
        return [*sound, InputSpec(name=MASK, dtype="int64", axes=sound[0].axes, role="mask")]
    if not {IDS, MASK} <= names:
        raise PosexportError(
            f"{config.label}: the encoder of {type(model).__name__} takes {encoder.main_input_name}; posexport "
            "converts encoder-decoders of texts, images and raw sound through transformers"
        )
    ids = _tokens(model, IDS, ENCODER_SEQUENCE)
    return [ids, InputSpec(name=MASK, dtype="int64", axes=ids.axes, role="mask")]


def _example_of_sound(model: Any, inputs: list[InputSpec]) -> tuple[Any, ...]:
    """An example and its axes for an encoder of raw audio; trial calls find its shortest and longest length."""
    if not any(SAMPLES in spec.axes for spec in inputs):
        return ()
    return TransformersModule(model, (), inputs, with_positions=False).example_and_axes


def _tokens(model: Any, name: str, axis: str) -> InputSpec:
    """The specification of an input of token ids."""
    settings = model.config.get_text_config()
    padding = settings.pad_token_id if isinstance(settings.pad_token_id, int) else 0
    return InputSpec(
        name=name,
        dtype="int64",
        axes=[BATCH, axis],
        role="tokens",
        size=settings.vocab_size,
        padding=min(max(padding, 0), settings.vocab_size - 1),
    )


def _definition(encoder: Source, model: Any, tokens: InputSpec) -> ThroughSeq2Seq:
    """The encoder and the decoder as a definition; ``tokens`` is the decoder's input.

    Raises:
        NotCachedError: the decoder cannot have a KV cache.
    """
    _, states, width = encoder.outputs[0].axes
    vocab = tokens.size
    assert isinstance(width, int)
    assert vocab is not None
    assert isinstance(encoder.module, UserModule)
    # positions are an argument of the decoder, or rows of a table that is replaced
    takes_positions = halves.POSITIONS in forward_parameters(model)
    reads_text = any(spec.role == "tokens" for spec in encoder.inputs)
    inner = not takes_positions and not reads_text and "position_ids" in forward_parameters(model.get_decoder())
    takes_positions = takes_positions or inner
    call = halves.DecoderCall(model, numbered=takes_positions).eval()
    user = by_name(encoder.name, call, *halves.decoder_specs(vocab, tokens.padding, width))
    table_length = None if takes_positions else halves.numbered(model, user)
    layers = halves.layers_of(user)
    if not any(layer.cross for layer in layers):
        raise NotCachedError("its attention is code of its own, which no KV cache of posexport's goes through")
    decoder = halves.ThroughHalf(user, layers)
    if inner:
        table_length = getattr(model.get_decoder().config, "max_position_embeddings", None)
    lengths = [length for length in (encoder.limits.max_length, table_length) if length is not None]
    # Moonshine's decoder has no position table: RoPE continues beyond the length that it was trained for
    stated = None if reads_text else getattr(model.config, "max_position_embeddings", None)
    limits = LengthContract(max_length=min(lengths, default=None), trained_length=min(lengths, default=stated))
    side = halves.ThroughEncoder(encoder.module, limits, states if isinstance(states, int) else ENCODER_SEQUENCE)
    definition = ThroughSeq2Seq(side, decoder, nn.Identity(), shared=False).eval()
    if any(SAMPLES in spec.axes for spec in encoder.inputs):
        known = encoder.limits
        longest = {SAMPLES: int(LONG * known.elements_per_token)}
        definition.sound = msgspec.structs.replace(known, proof_sizes=[*known.proof_sizes, longest])
    return definition


def _check_logits(pair: nn.Module, dtype: torch.dtype) -> None:
    """Compare the logits of a definition with transformers' forward, in one call and in several with a KV cache.

    Raises:
        NotCachedError: the logits differ, or padding on the left changes them.
    """
    assert isinstance(pair, nn.ModuleList)
    definition, whole = pair
    assert isinstance(definition, ThroughSeq2Seq)
    assert isinstance(whole, TransformersModule)
    limit = definition.limits.max_length
    length = min(_DECODER_LENGTH, limit or _DECODER_LENGTH)
    parts = (length - 2, 1, 1) if length == _DECODER_LENGTH else (1,) * length
    ids_BT = _random_ids(definition, length)
    sizes = whole.sizes({BATCH: _ROWS, ENCODER_SEQUENCE: min(_ENCODER_LENGTH, limit or _ENCODER_LENGTH)})
    far = example(definition.side.inputs, sizes)
    far = {name: x.to(dtype) if x.is_floating_point() else x for name, x in far.items()}
    if MASK in far:
        far[MASK][-1, -(far[MASK].shape[1] // 3) :] = 0
    with torch.no_grad(), computing_in(dtype):
        # one prefill, and a prefill with decode steps
        expected = _reference_logits(whole, far, ids_BT)
        whole_BT = torch.ones_like(ids_BT)
        for calls in ((length,), parts):
            if differ(_logits_in_calls(definition, far, ids_BT, whole_BT, calls), expected, whole_BT, dtype):
                raise NotCachedError(
                    "with a KV cache its logits are others than without, so something beside attention looks at other "
                    "tokens or counts them"
                )
        # left padding: every row must equal the row without padding
        padded_BT = (torch.arange(length) >= torch.arange(_ROWS)[:, None].clamp(max=length - 1)).to(torch.int64)
        actual = _logits_in_calls(definition, far, ids_BT, padded_BT, parts)
        for index, mask_T in enumerate(padded_BT):
            alone_1T = ids_BT[index, mask_T != 0][None]
            far_1 = {name: x[index : index + 1] for name, x in far.items()}
            alone = _reference_logits(whole, far_1, alone_1T)
            if differ(actual[index, mask_T != 0][None], alone, torch.ones_like(alone_1T), dtype):
                raise NotCachedError("padding on the left of its decoder's tokens changes its logits")
        # a decode step after a long prefill
        long_1T = _random_ids(definition, min(limit or _LONGEST, _LONGEST))[:1]
        ones_1T, first = torch.ones_like(long_1T), {name: x[:1] for name, x in far.items()}
        actual = _logits_in_calls(definition, first, long_1T, ones_1T, (long_1T.shape[1] - 1, 1))
        if differ(actual, _reference_logits(whole, first, long_1T), ones_1T, dtype):
            raise NotCachedError(f"at {long_1T.shape[1]} tokens, and not before, a KV cache changes its logits")


def _random_ids(definition: ThroughSeq2Seq, length: int) -> Tensor:
    """Random ids without the padding id: with it, some types compute other position ids."""
    sizes = definition.decoder.config
    ids_BT = torch.randint(0, sizes.vocab - 1, (_ROWS, length), generator=torch.Generator().manual_seed(length))
    return ids_BT + (ids_BT >= sizes.padding_id).to(torch.int64)


def _reference_logits(whole: TransformersModule, far: Mapping[str, Tensor], ids_BT: Tensor) -> Tensor:
    logits: Tensor = whole(**{**far, halves.IDS: ids_BT})["logits"]
    return logits


def _logits_in_calls(
    definition: ThroughSeq2Seq,
    far: Mapping[str, Tensor],
    ids_BT: Tensor,
    mask_BT: Tensor,
    parts: tuple[int, ...],
) -> Tensor:
    """The logits of all tokens, from calls with ``parts`` new tokens each."""
    wiring, logits, end = definition.wiring, [], 0
    past: dict[str, Tensor] = {}
    outputs = [spec.name.replace("present", "past_key_values") for spec in definition.outputs]
    for new in parts:
        start, end = end, end + new
        feeds = {
            **far,
            halves.IDS: ids_BT[:, start:end],
            "decoder_attention_mask": mask_BT[:, :end],
        }
        results = dict(zip(outputs, definition(**feeds, **past), strict=True))
        logits.append(results["logits"])
        past = {spec.name: results[spec.name] for spec in wiring.past}
    return torch.cat(logits, 1)
