"""Encoder-decoders: what their sources say, calls one after the other, tables and heads that are shared, refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, Tensors, change, configure, read, refusal
from safetensors.torch import load_file

from posexport.encodings.sinusoidal import Sinusoidal
from posexport.encodings.t5 import T5
from posexport.errors import PosexportError
from posexport.models.decoder import DecoderConfig
from posexport.models.encoder import EncoderConfig
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.spectrogram import SpectrogramConfig
from posexport.sources.source import Source
from tests.tolerances import agree, allowed

Copy = Callable[[str], Path]
#: checkpoint: task, encoding, longest input, whether left padding changes nothing, heads and their size in the decoder
KNOWN: dict[str, tuple[str, str, int | None, bool, int, int]] = {
    "t5-forconditionalgeneration": ("text2text-generation", "t5", None, True, 5, 3),
    "t5-gated-forconditionalgeneration": ("text2text-generation", "t5", None, True, 5, 3),
    "mt5-forconditionalgeneration": ("text2text-generation", "t5", None, True, 5, 3),
    "umt5-forconditionalgeneration": ("text2text-generation", "t5", None, True, 5, 3),
    "bart-forconditionalgeneration": ("text2text-generation", "learned", 34, False, 5, 4),
    "mbart-forconditionalgeneration": ("text2text-generation", "learned", 34, False, 5, 4),
    "marian-mtmodel": ("text2text-generation", "sinusoidal", 40, False, 3, 6),
    "marian-unshared-mtmodel": ("text2text-generation", "sinusoidal", 40, False, 3, 6),
    "whisper-forconditionalgeneration": ("automatic-speech-recognition", "absolute", 34, True, 5, 4),
}
TEXT = [name for name in KNOWN if not name.startswith("whisper")]
BART, MARIAN, WHISPER = "bart-forconditionalgeneration", "marian-mtmodel", "whisper-forconditionalgeneration"
T5_TIED, T5_UNTIED = "t5-forconditionalgeneration", "t5-gated-forconditionalgeneration"


def point(name: str, which: str) -> dict[str, torch.Tensor]:
    stored = load_file(GOLDEN / name / "expected.safetensors")
    found = {key.removeprefix(f"{which}."): value for key, value in stored.items() if key.startswith(f"{which}.")}
    return {key: value.double() if value.is_floating_point() else value.long() for key, value in found.items()}


def call(source: Source, given: dict[str, torch.Tensor], past: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the whole definition, in float64."""
    module = source.module.double()
    held = [spec.name for spec in source.inputs if spec.role == "cache"]
    known = {name: past[name.replace("past_key_values", "present")] for name in held if past}
    names = [spec.name for spec in source.inputs if spec.role not in ("cache", "positions")]
    with torch.inference_mode():
        outputs = module(**{name: given[name] for name in names if name in given}, **known)
    return {spec.name: value for spec, value in zip(source.outputs, outputs, strict=True)}


def logits(directory: Path, which: str = "none-33-17", task: str | None = None) -> torch.Tensor:
    return call(read(directory, task), point(directory.name, which), {})["logits"]


@pytest.mark.parametrize("name", KNOWN)
def test_what_the_source_says(name: str) -> None:
    task, encoding, limit, shift_invariant, heads, size = KNOWN[name]
    source = read(GOLDEN / name)
    assert source.task == task
    assert source.encoding is not None
    assert source.encoding.name == encoding
    assert (source.limits.max_length, source.limits.kv_cache, source.promises.causal) == (limit, True, True)
    assert source.promises.shift_invariant == shift_invariant
    assert source.promises.padding_invariant
    caches = [spec.axes[1::2] for spec in source.inputs if spec.role == "cache"]
    assert caches == [[heads, size]] * 2 * (1 if name.startswith(("mt5", "whisper")) else 2)
    assert {"config.json", "generation_config.json"} <= set(source.files)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("which", ["none-33-17", "right-17-5"])
def test_calls_one_after_the_other_give_transformers_logits(name: str, which: str) -> None:
    """A prompt of several tokens, single ones, and a part."""
    source, given = read(GOLDEN / name), point(name, which)
    ids, wanted = given["decoder_input_ids"], given["logits"]
    past: dict[str, torch.Tensor] = {}
    got, seen = [], 0
    for part in torch.split(ids, [9, 1, 6, 1] if ids.shape[1] == 17 else [3, 1, 1], 1):
        seen += part.shape[1]
        mask = torch.ones(len(ids), seen, dtype=torch.int64)
        past = call(source, given | {"decoder_input_ids": part, "decoder_attention_mask": mask}, past)
        got.append(past["logits"])
    agree(torch.cat(got, 1), wanted, "model in float32", np.float32)


@pytest.mark.parametrize("name", KNOWN)
def test_its_parts_give_transformers_logits(name: str) -> None:
    """The encoder, then the decoder with what the encoder gave; its names say what goes where."""
    source, known = read(GOLDEN / name), point(name, "right-17-5")
    model = source.module.double()
    assert isinstance(model, EncoderDecoderModel)
    known["decoder_attention_mask"] = torch.ones_like(known["decoder_input_ids"])
    for spec in source.inputs:
        if spec.role == "cache":
            sizes = [axis if isinstance(axis, int) else {"batch_size": 3}.get(axis, 0) for axis in spec.axes]
            known[spec.name] = torch.zeros(sizes, dtype=torch.float64)
    for part in model.parts:
        feeds = {ours: known[theirs] for ours, theirs in part.spec.input_names.items() if theirs in known}
        with torch.inference_mode():
            outputs = part.module(**feeds)
        known |= {part.spec.output_names[spec.name]: out for spec, out in zip(part.spec.outputs, outputs, strict=True)}
    wanted = point(name, "right-17-5")["logits"]
    agree(known["logits"], wanted, "model in float32", np.float32)


@pytest.mark.parametrize("name", TEXT)
def test_padding_on_the_left_is_for_relative_positions_only(name: str) -> None:
    source, given = read(GOLDEN / name), point(name, "right-17-5")
    whole = call(source, given, {})["logits"]
    moved = {key: given[key].clone() for key in given}
    for row, real in enumerate(given["attention_mask"].sum(1).tolist()):
        for key in ("input_ids", "attention_mask"):
            moved[key][row] = given[key][row].roll(17 - real)
    change = (call(source, moved, {})["logits"] - whole).abs().max() / whole.abs().max()
    assert (change <= allowed("model", np.float64)) == source.promises.shift_invariant
    assert source.promises.shift_invariant or change > 1e-3


def test_an_encoder_sees_both_sides_and_a_decoder_one() -> None:
    model = read(GOLDEN / T5_TIED).module
    assert isinstance(model, EncoderDecoderModel)
    encoder, decoder = model.side.encodings[0], model.decoder.encodings[0]
    assert isinstance(encoder, T5)
    assert isinstance(decoder, T5)
    assert (encoder.bidirectional, decoder.bidirectional) == (True, False)
    assert encoder.table is not decoder.table


def test_tables_of_every_layer_and_of_all() -> None:
    for name, count in ((T5_TIED, 1), ("umt5-forconditionalgeneration", 2)):
        model = read(GOLDEN / name).module
        assert isinstance(model, EncoderDecoderModel)
        assert len({id(encoding.table) for encoding in model.decoder.encodings if isinstance(encoding, T5)}) == count


def test_what_the_head_reads_is_scaled_where_it_is_tied(copy: Copy) -> None:
    """T5 1.0 and 1.1: the same weights give logits that differ by the root of the size."""
    directory = copy(T5_TIED)
    before = logits(directory)
    change(directory, lambda tensors: tensors.update({"lm_head.weight": tensors["shared.weight"].clone()}))
    assert torch.equal(logits(directory), before)
    configure(directory, tie_word_embeddings=False)
    agree(logits(directory), before * 20**0.5, "model", np.float64)


def test_two_tables_that_differ_are_no_tied_one(copy: Copy) -> None:
    directory = copy(T5_UNTIED)
    configure(directory, tie_word_embeddings=True, transformers_version="4.57.6")
    assert "differ in the file" in refusal(directory)


def test_the_names_of_older_files(copy: Copy) -> None:
    directory = copy(T5_TIED)
    before = logits(directory)
    old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

    def add(tensors: Tensors) -> None:
        tensors[old] = torch.ones(8, 5)
        for half in ("encoder", "decoder"):
            tensors[f"{half}.embed_tokens.weight"] = tensors["shared.weight"].clone()

    change(directory, add)
    configure(directory, architectures=["T5WithLMHeadModel"])
    assert torch.equal(logits(directory), before)
    change(directory, lambda tensors: tensors.update({old.replace("block.0", "block.1"): torch.ones(8, 5)}))
    assert "block.1.layer.1.EncDecAttention.relative_attention_bias" in refusal(directory)


def test_of_a_decoder_that_is_read_every_tensor_counts(copy: Copy) -> None:
    directory = copy(BART)
    name = "model.decoder.layers.1.fc1.bias"
    change(directory, lambda tensors: tensors.pop(name))
    assert name in refusal(directory)
    source = read(directory, "features")
    assert any("the decoder" in remark for remark in source.remarks)
    assert any("the language-model head" in remark for remark in source.remarks)


def test_logits_without_a_bias_and_names_without_a_prefix(copy: Copy) -> None:
    """As the released BartModel is: no head, so the embeddings are it, and zeros the bias."""
    directory = copy(BART)
    before, bias = logits(directory), load_file(directory / "model.safetensors")["final_logits_bias"]

    def strip(tensors: Tensors) -> None:
        del tensors["final_logits_bias"]
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["encoder.version"] = torch.zeros(1)

    change(directory, strip)
    configure(directory, architectures=["BartModel"])
    sentence = refusal(directory)
    assert "BartModel" in sentence
    assert "--task text2text-generation, or --task features" in sentence
    agree(logits(directory, task="text2text-generation"), before - bias.double(), "model", np.float64)


def test_embeddings_are_scaled_where_the_file_says_so(copy: Copy) -> None:
    for name, default in ((BART, False), (MARIAN, True)):
        directory = copy(name)
        before = logits(directory)
        configure(directory, scale_embedding=default)
        assert torch.equal(logits(directory), before)
        configure(directory, scale_embedding=not default)
        assert (logits(directory) - before).abs().max() > 0.01 * before.abs().max()


def test_a_table_of_sines_in_the_file_must_be_the_formula(copy: Copy) -> None:
    """Files of older versions hold it, also in half precision."""
    directory = copy(MARIAN)
    before = logits(directory)
    name = "model.decoder.embed_positions.weight"
    table = Sinusoidal(hidden=18, layout="half").vectors(torch.arange(40), torch.float64).float()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        made = {name: table.to(dtype)}
        change(directory, lambda tensors, made=made: tensors.update(made))  # type: ignore[misc]
        assert torch.equal(logits(directory), before)
    wrong = Sinusoidal(hidden=18).vectors(torch.arange(40), torch.float64).float()
    for other in (wrong, 1.01 * table):
        change(directory, lambda tensors, other=other: tensors.update({name: other}))  # type: ignore[misc]
        assert "embed_positions.weight differs from the family's formula" in refusal(directory)


def test_a_table_of_tokens_for_each_half(copy: Copy) -> None:
    """The decoder's in the other order: so are its ids and its logits."""
    directory = copy(MARIAN)
    given, before = point(MARIAN, "none-33-17"), logits(directory)

    def split(tensors: Tensors) -> None:
        table = tensors.pop("model.shared.weight")
        tensors["model.encoder.embed_tokens.weight"] = table
        tensors["model.decoder.embed_tokens.weight"] = table.flip(0)
        tensors["final_logits_bias"] = tensors["final_logits_bias"].flip(1)

    change(directory, split)
    assert "differ in the file" in refusal(directory)
    configure(directory, share_encoder_decoder_embeddings=False, decoder_vocab_size=29)
    turned = call(read(directory), given | {"decoder_input_ids": 28 - given["decoder_input_ids"]}, {})["logits"]
    agree(turned.flip(-1), before, "model", np.float64)
    configure(directory, decoder_vocab_size=30)
    sentence = refusal(directory)
    assert "model.decoder.embed_tokens.weight is [29, 18], needed [30, 18]" in sentence
    assert "final_logits_bias is [1, 29], needed [1, 30]" in sentence


def test_a_spectrogram_has_one_length() -> None:
    source = read(GOLDEN / WHISPER)
    assert source.inputs[0].name == "input_features"
    assert source.inputs[0].axes == ["batch_size", 7, 22]
    assert not [spec for spec in source.inputs if spec.role == "mask" and spec.name != "decoder_attention_mask"]
    alone = read(GOLDEN / WHISPER, "features")
    assert [spec.axes for spec in alone.outputs] == [["batch_size", 11, 20]]
    names = {name for name, _ in alone.module.named_parameters() if ".key." in name}
    assert names == {f"encoder.layers.{i}.attention.key.weight" for i in range(2)}


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        (BART, {"normalize_before": True}, "normalize_before = True; only false is read"),
        (BART, {"normalize_embedding": False}, "normalize_embedding = False; only true is read"),
        (BART, {"add_final_layer_norm": True}, "add_final_layer_norm = True"),
        (BART, {"static_position_embeddings": True}, "static_position_embeddings = True"),
        (BART, {"tie_word_embeddings": False}, "tie_word_embeddings = False; only true is read"),
        (MARIAN, {"tie_encoder_decoder": True}, "tie_encoder_decoder = True; only false is read"),
        (BART, {"activation_function": "erf"}, "unknown activation 'erf'"),
        (BART, {"decoder_attention_heads": 3}, "d_model = 20, decoder_attention_heads = 3; the heads must divide"),
        (BART, {"max_position_embeddings": 33}, "embed_positions.weight is [36, 20], needed [35, 20]"),
        (MARIAN, {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 0}, "decoder_vocab_size = 0"),
        (
            MARIAN,
            {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 17},
            "config.json has pad_token_id = 28, decoder_vocab_size = 17",
        ),
        (
            MARIAN,
            {"share_encoder_decoder_embeddings": False},
            "check model_type, share_encoder_decoder_embeddings, tie_word_embeddings, decoder_vocab_size and sizes",
        ),
        (MARIAN, {"architectures": ["MarianModel"]}, "choose --task text2text-generation, or --task features"),
        (WHISPER, {"tie_word_embeddings": False}, "tie_word_embeddings = False; only true is read"),
        (WHISPER, {"architectures": ["WhisperForAudioClassification"]}, "--task automatic-speech-recognition"),
        (WHISPER, {"max_source_positions": 12}, "embed_positions.weight is [11, 20], needed [12, 20]"),
        (WHISPER, {"num_mel_bins": 8}, "conv1.weight is [20, 7, 3], needed [20, 8, 3]"),
        (WHISPER, {"activation_function": "erf"}, "unknown activation 'erf'"),
        (T5_TIED, {"feed_forward_proj": "gated-erf"}, "feed_forward_proj = 'gated-erf'"),
        (T5_TIED, {"num_decoder_layers": 0}, "num_decoder_layers = 0; it must be a whole number from 1"),
        (T5_TIED, {"num_decoder_layers": 1}, "decoder.block.1"),
        (T5_TIED, {"architectures": ["T5ForQuestionAnswering"]}, "choose --task text2text-generation"),
    ],
)
def test_what_is_refused(copy: Copy, name: str, values: dict[str, Any], words: str) -> None:
    directory = copy(name)
    configure(directory, **values)
    assert words in refusal(directory)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EncoderConfig.of(embedding_scale=0.0), "embedding_scale must be a finite number above 0, got 0.0"),
        (lambda: DecoderConfig.of(head_scale=-1.0), "head_scale must be a finite number above 0, got -1.0"),
        (lambda: SpectrogramConfig(tokens=0), "tokens must be a whole number from 1 on, got 0"),
    ],
)
def test_settings_that_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(PosexportError, match=words):
        make()
