"""Audio: frames of samples, what padding may change, the gate's input, and what is read and refused of checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings.nope import NoPE
from posexport.encodings.positions import Positions
from posexport.encodings.rope.rope import Rope
from posexport.encodings.wavlm_gated import WavLMGated
from posexport.errors import PosexportError
from posexport.models.audio import AudioConfig, AudioEncoder, AudioModel, PositionalConvolution
from posexport.models.conformer import CausalConvolution, CentredConvolution, Convolution, FixedBatchNorm
from posexport.models.layer import Attention, AttentionConfig, LayerConfig
from posexport.models.speech import SpeechModel, StackConfig, frame_mask
from posexport.nn.heads import Features
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import keep_mask
from posexport.proof.grid.point import GridPoint
from posexport.base.sizes import frames, samples
from posexport.sources.source import Source
from posexport.base.spec import SEQUENCE, Limits
from tests.tolerances import agree, agree_each

GOLDEN = Path(__file__).parents[1] / "golden"
STEPS = [(5, 3), (3, 2), (2, 1)]
#: kernels wider and narrower than strides, and none but one
STACKS = [STEPS, [(10, 5), (3, 2)], [(2, 3)], [(4, 1), (1, 4)]]
LAYER = LayerConfig.of(hidden=20, heads=5, feedforward=7, eps=1e-5)


def drawn(module: nn.Module) -> nn.Module:
    """In float64, with weights at which everything matters."""
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    for part in module.modules():
        if isinstance(part, FixedBatchNorm):
            nn.init.uniform_(part.variance, 0.5, 2)
    return module.double().eval()


# -- frames of samples


@pytest.mark.parametrize("steps", STACKS)
def test_samples_are_the_fewest_for_so_many_frames(steps: list[tuple[int, int]]) -> None:
    for count in (1, 2, 3, 17, 64):
        fewest = samples(count, steps)
        assert frames(fewest, steps) == count
        assert frames(fewest - 1, steps) < count
        x = torch.zeros(1, 1, fewest)
        for kernel, stride in steps:
            x = F.conv1d(x, torch.zeros(1, 1, kernel), stride=stride)
        assert x.shape[-1] == count


@pytest.mark.parametrize("steps", STACKS)
def test_real_frames_are_those_of_the_real_samples_alone(steps: list[tuple[int, int]]) -> None:
    longest = samples(9, steps) + 1
    mask = (torch.arange(longest) < torch.arange(longest + 1)[:, None]).long()
    count = frames(longest, steps)
    got = frame_mask(mask, steps, torch.zeros(len(mask), count, 1))
    wanted = [[int(t < frames(real, steps)) for t in range(count)] for real in range(longest + 1)]
    assert got.tolist() == wanted
    assert got.dtype == torch.int64


def test_no_row_of_the_grid_is_without_a_frame() -> None:
    least = samples(1, STEPS)
    lengths = range(least, least + 40)
    for length in lengths:
        for padding in ("right", "ragged-right"):
            point = GridPoint(batch=3, length=length, padding=padding, convolutions=STEPS)
            real = keep_mask(point).sum(1)
            assert min(frames(int(n), STEPS) for n in real) >= 1
            assert (real < length).any() == (length > least)
    model = speech("layer")
    points = grid(Limits.of(model.limits, model.plan), model.inputs)
    assert {p.padding for p in points if p.length == least} == {"none"}
    assert {p.padding for p in points if p.length > least} == {"none", "right", "ragged-right"}


def speech(norm: str, **given: Any) -> SpeechModel:
    """Three convolutions and one layer (a plain one, with a positional convolution, or what ``given`` says)."""
    stack = StackConfig(channels=(4, 6, 9), kernels=(5, 3, 2), strides=(3, 2, 1), norm=norm)  # type: ignore[arg-type]
    settings = {"positional_kernel": 6, "positional_groups": 4, "kernel": 5} | given
    config = AudioConfig(channels=9, hidden=20, heads=5, feedforward=7, layers=1, **settings)
    encoding = WavLMGated(heads=5, head_size=4, buckets=8, max_distance=7)
    model = SpeechModel(stack, AudioEncoder(config, encoding), Features(20))
    drawn(model)
    return model


def test_limits_count_frames_in_samples() -> None:
    limits, plan = speech("layer").limits, speech("layer").plan
    assert limits.min_length == 17
    assert limits.min_length in plan.proof_lengths
    counts = [frames(length, STEPS) for length in plan.proof_lengths]
    # 8 buckets: 2 near ones a side, then from 2 and from 4, and the farthest distance
    assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 17, 63, 64, 65, 257]
    ends = {length - samples(count, STEPS) for length, count in zip(plan.proof_lengths, counts, strict=True)}
    assert ends == {0, 5}, "the fewest samples of a count and the most"
    assert limits.convolutions == STEPS
    assert frames(plan.trace_sizes[SEQUENCE], STEPS) > 1


# -- padding


def padded_and_alone(model: SpeechModel | AudioModel, alone: torch.Tensor, pads: int) -> tuple[np.ndarray, np.ndarray]:
    """The real frames' states with noise behind them, and without."""
    noise = torch.randn(1, pads, *alone.shape[2:], dtype=torch.float64)
    both = torch.cat([alone, noise], 1)
    mask = (torch.arange(both.shape[1]) < alone.shape[1]).long()[None]
    with torch.no_grad():
        wanted = model(alone, torch.ones(alone.shape[:2], dtype=torch.int64))[0]
        return model(both, mask)[0][:, : wanted.shape[1]].numpy(), wanted.numpy()


@pytest.mark.parametrize("block", ["plain", "conformer"])
@pytest.mark.parametrize("norm", ["layer", "group"])
@pytest.mark.parametrize("convolution", ["causal", "centred"])
def test_padding_of_samples_changes_what_is_declared(norm: str, block: str, convolution: str) -> None:
    model = speech(norm, block=block, convolution=convolution)
    got, wanted = padded_and_alone(model, torch.randn(1, 71, dtype=torch.float64), 38)
    exact = norm == "layer" and (block, convolution) != ("conformer", "centred")
    assert model.padding_invariant == exact
    assert not model.shift_invariant
    if exact:
        agree(got, wanted, "attention", np.float64)
    else:
        assert np.abs(got - wanted).max() > 1e-3 * np.abs(wanted).max()


def audio(**given: Any) -> AudioModel:
    """Two Conformer blocks of features."""
    config = AudioConfig(channels=7, hidden=20, heads=5, feedforward=9, block="conformer", **({"kernel": 5} | given))
    model = AudioModel(AudioEncoder(config, Rope(head_size=4)), Features(20))
    drawn(model)
    return model


@pytest.mark.parametrize("rotates_input", [False, True])
@pytest.mark.parametrize("convolution", ["causal", "centred"])
def test_padding_of_frames_changes_what_is_declared(convolution: str, rotates_input: bool) -> None:
    model = audio(convolution=convolution, rotates_input=rotates_input)
    alone = torch.randn(1, 13, 7, dtype=torch.float64)
    got, wanted = padded_and_alone(model, alone, 6)
    causal = convolution == "causal"
    assert model.padding_invariant == causal
    assert model.shift_invariant == (causal and not rotates_input)
    if causal:
        agree(got, wanted, "attention", np.float64)
    else:
        assert np.abs(got - wanted).max() > 1e-3 * np.abs(wanted).max()
    left = torch.cat([torch.randn(1, 6, 7, dtype=torch.float64), alone], 1)
    with torch.no_grad():
        moved = model(left, (torch.arange(19) >= 6).long()[None])[0][:, 6:].numpy()
    if model.shift_invariant:
        agree(moved, wanted, "attention", np.float64, 6)
    else:
        assert np.abs(moved - wanted).max() > 1e-3 * np.abs(wanted).max()


# -- the parts


@pytest.mark.parametrize(("kind", "before", "after"), [(CausalConvolution, 4, 0), (CentredConvolution, 2, 2)])
def test_how_far_a_convolution_sees(kind: type[Convolution], before: int, after: int) -> None:
    module = kind(LAYER, 5)
    drawn(module)
    x = torch.randn(1, 17, 20, dtype=torch.float64)
    changed = x.clone()
    changed[0, 8, 3] += 1
    with torch.no_grad():
        moved = (module(changed, None) - module(x, None)).abs().amax(-1)[0] > 1e-9
    # what frame 8 tells: those that see it
    assert moved.nonzero()[:, 0].tolist() == list(range(8 - after, 8 + before + 1))


def test_batch_normalisation_is_torch_s() -> None:
    theirs = nn.BatchNorm1d(20).double().eval()
    ours = FixedBatchNorm(20)
    drawn(ours)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)
        theirs.running_mean.copy_(ours.mean)
        theirs.running_var.copy_(ours.variance)
        x = torch.randn(3, 20, 11, dtype=torch.float64)
        agree(ours(x), theirs(x), "operator", np.float64)


@pytest.mark.parametrize("kernel", [1, 2, 7, 8])
def test_positional_convolution_of_even_kernels_drops_the_last(kernel: int) -> None:
    config = AudioConfig(hidden=20, positional_kernel=kernel, positional_groups=4, positional_activation="relu")
    module = PositionalConvolution(config)
    drawn(module)
    x = torch.randn(2, 11, 20, dtype=torch.float64)
    made = module.convolution
    wanted = F.conv1d(x.mT, made.weight, made.bias, padding=kernel // 2, groups=4)[..., :11].relu().mT
    agree(module(x).detach(), wanted.detach(), "operator", np.float64)


def test_the_gate_reads_the_attention_s_input() -> None:
    encoding = WavLMGated(heads=5, head_size=4, buckets=8, max_distance=7)
    attention = Attention(LAYER.attention, LAYER.hidden, encoding)
    drawn(attention)
    x, at = torch.randn(2, 9, 20, dtype=torch.float64), Positions.counted(9)
    with torch.no_grad():
        got = attention(x, x, None, at, at)
        q, k, v = (
            layer(x).unflatten(-1, (5, 4)).transpose(1, 2)
            for layer in (attention.query, attention.key, attention.value)
        )
        term = encoding.scores(x.unflatten(-1, (5, 4)).transpose(1, 2), k, at, at).dense()
        wanted = attention.output(((q @ k.mT / 2 + term).softmax(-1) @ v).transpose(1, 2).flatten(2))
        of_queries = encoding.scores(q, k, at, at).dense()
    agree(got, wanted, "attention", np.float64)
    assert (of_queries - term).abs().max() > 0.1 * term.abs().max()


def test_heads_that_do_not_share_the_input_have_no_gate() -> None:
    with pytest.raises(PosexportError, match=r"wavlm-gated reads the attention's input head by head.* head_width=6"):
        Attention(AttentionConfig(heads=5, head_width=6), 20, WavLMGated(heads=5, head_size=6))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"buckets": 7}, "buckets must be even"),
        ({"buckets": 2}, "buckets must be a whole number from 4 on"),
        ({"buckets": 40, "max_distance": 10}, "max_distance above a quarter of them, got buckets=40, max_distance=10"),
    ],
)
def test_buckets_that_do_not_fit(given: dict[str, int], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        WavLMGated(heads=5, head_size=4, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"convolution": "centred", "kernel": 4}, "kernel must be odd"),
        ({"kernel": 0}, "kernel must be a whole number from 1 on"),
        ({"hidden": 20, "positional_groups": 3}, "positional_groups must divide hidden"),
        ({"rotates_input": True}, "set block=conformer"),
        ({"hidden": 21}, "hidden must be a multiple of heads"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        AudioConfig(**given)


# -- checkpoints


@pytest.fixture
def copy(tmp_path: Path):
    def made(name: str, **values: Any) -> Path:
        target = tmp_path / name
        shutil.copytree(GOLDEN / name, target)
        path = target / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
        return target

    return made


def read(directory: Path, task: str | None = None) -> Source:
    return checkpoint_source(directory, task=task, allow_pickle=False)


@pytest.mark.parametrize(
    ("name", "task", "encoding", "minimum", "invariant"),
    [
        ("wavlm-group", "features", "wavlm-gated", 17, (False, False)),
        ("wavlm-layer-forctc", "ctc", "wavlm-gated", 17, (False, True)),
        ("wav2vec2-conformer-relative-forctc", "ctc", "conformer", 17, (False, False)),
        ("wav2vec2-conformer-rotary", "features", "rope", 17, (False, False)),
        ("wav2vec2-bert-relative_key-forctc", "ctc", "wav2vec2-bert", 1, (True, True)),
        ("wav2vec2-bert-relative", "features", "conformer", 1, (True, True)),
        ("wav2vec2-bert-rotary", "features", "rope", 1, (False, True)),
    ],
)
def test_what_the_source_says(name: str, task: str, encoding: str, minimum: int, invariant: tuple[bool, bool]) -> None:
    source = read(GOLDEN / name)
    assert source.encoding is not None
    assert (source.task, source.encoding.name, source.limits.min_length) == (task, encoding, minimum)
    assert (source.promises.shift_invariant, source.promises.padding_invariant) == invariant
    assert source.module.ordered
    raw = not name.startswith("wav2vec2-bert")
    assert source.inputs[0].name == ("input_values" if raw else "input_features")
    assert source.outputs[0].axes[1] == ("num_frames" if raw else "sequence_length")
    assert source.remarks == []


def test_weights_of_the_older_names_are_the_same(copy) -> None:
    old = copy("wavlm-group")
    tensors = load_file(old / "model.safetensors")
    stem = "encoder.pos_conv_embed.conv."
    tensors[f"{stem}weight_g"] = tensors.pop(f"{stem}parametrizations.weight.original0")
    tensors[f"{stem}weight_v"] = tensors.pop(f"{stem}parametrizations.weight.original1")
    save_file(tensors, old / "model.safetensors")
    one, two = (dict(read(path).module.named_parameters()) for path in (GOLDEN / "wavlm-group", old))
    assert all(torch.equal(one[name], two[name]) for name in one)
    norm = one["encoder.positional.convolution.weight"].flatten(0, 1).norm(dim=0)
    agree_each(norm, tensors[f"{stem}weight_g"].flatten().abs(), "operator", np.float32)

    del tensors[f"{stem}weight_g"]
    save_file(tensors, old / "model.safetensors")
    with pytest.raises(PosexportError, match=r"1 needed ones are not in the file .*original0"):
        read(old)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("wavlm-group", {"add_adapter": True}, "sets add_adapter: the layers of an adapter are not read"),
        ("wavlm-group", {"feat_extract_norm": "batch"}, "feat_extract_norm = 'batch'; it must be group or layer"),
        ("wavlm-group", {"conv_dim": [6, 7]}, "2 channels, 3 kernels, 3 strides; check conv_dim"),
        ("wavlm-group", {"conv_stride": [3, 0, 1]}, r"conv_stride = \[3, 0, 1\]; it must be a list of whole numbers"),
        ("wavlm-group", {"num_conv_pos_embedding_groups": 3}, "config.json: positional_groups must divide hidden"),
        ("wavlm-group", {"num_buckets": 13}, "num_buckets = 13, max_bucket_distance = 15: .*must be even"),
        ("wavlm-group", {"feat_extract_activation": "sine"}, "feat_extract_activation = 'sine': unknown activation"),
        ("wavlm-group", {"num_conv_pos_embeddings": 7}, "have another shape .*original1 is .* needed .*7]"),
        (
            "wav2vec2-conformer-rotary",
            {"conv_depthwise_kernel_size": 4},
            "conv_depthwise_kernel_size = 4; it must be odd",
        ),
        ("wav2vec2-conformer-rotary", {"position_embeddings_type": "relative_key"}, "known: relative, rotary, or null"),
        ("wav2vec2-conformer-rotary", {"rotary_embedding_base": 1}, "rotary_embedding_base = 1; it must be a number"),
        ("wav2vec2-conformer-rotary", {"rotary_embedding_base": 9000}, "inv_freq differs from the family's formula"),
        ("wav2vec2-conformer-rotary", {"num_attention_heads": 4}, "heads of size 5 .* even number of channels"),
        ("wav2vec2-bert-adapter-forctc", {"adapter_stride": 4}, r"kernel // 2 must be stride // 2"),
        ("wav2vec2-bert-rotary", {"use_intermediate_ffn_before_adapter": True}, "sets use_intermediate_ffn_before"),
        ("wav2vec2-bert-relative", {"position_embeddings_type": "absolute"}, "known: relative, rotary, relative_key"),
        ("wav2vec2-bert-relative", {"position_embeddings_type": None}, "not used .*linear_pos"),
    ],
)
def test_what_is_not_computed_is_refused(copy, name: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said) as caught:
        read(copy(name, **values))
    assert "\n" not in str(caught.value)


def test_positions_may_be_left_out(copy) -> None:
    directory = copy("wav2vec2-bert-rotary", position_embeddings_type=None)
    source = read(directory)
    assert source.encoding is not None
    assert source.encoding.name == NoPE.name
    assert source.module.ordered, "its convolutions tell the order of frames"


@pytest.mark.all
def test_a_model_of_samples_is_proven(tmp_path: Path) -> None:
    options = ConvertOptions(threads=1, lengths=(17, 28, 29, 131))
    done = convert(str(GOLDEN / "wavlm-layer-forctc"), tmp_path / "b", options)
    assert done.report is not None
    assert done.report.passed
    assert {p.padding for p in done.report.points} == {"none", "right", "ragged-right"}
