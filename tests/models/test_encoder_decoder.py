"""Encoder-decoders: the definition and its two graphs agree, in calls too; a wrong graph is caught and located."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import numpy_helper
from torch import Tensor, nn

import posexport
from posexport.api import verify
from posexport.run.bundle.manifest import Manifest, decode, encode
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal
from posexport.cli import group
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.errors import PosexportError
from posexport.conversion.export.build import build
from posexport.models.decoder import Decoder, DecoderConfig, LanguageModel
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.proof.report.report import Report
from posexport.sources import builtin
from posexport.sources.source import Source, model_of
from posexport.base.spec import BATCH, SEQUENCE, Axis, InputSpec, LengthContract
from tests.parity_models import prove
from tests.small import recipe
from tests.tolerances import agree

SIZES = ("layers=2", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "tied=false")
LIMIT = 13


def sized(*settings: str) -> list[str]:
    """``settings``, and those of `SIZES` that they leave."""
    named = {pair.partition("=")[0] for pair in settings}
    return [*(pair for pair in SIZES if pair.partition("=")[0] not in named), *settings]


def model(encoding: str, *settings: str, task: str | None = None) -> Source:
    return builtin.builtin_source(f"encoder-decoder-{encoding}", task=task, settings_given=tuple(sized(*settings)))


def exported(source: Source, folder: Path) -> Path:
    for file, graph in source.graphs.items():
        build(graph, folder / file, recipe())
    return folder


def proof(source: Source, folder: Path, model_of: Source | None = None) -> Report:
    return prove(source, exported(model_of or source, folder), lengths=(7,), threads=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder, made = tmp_path_factory.mktemp("bundles"), dict[tuple[str, ...], Path]()

    def convert(encoding: str, *options: str) -> Path:
        key = (encoding, *options)
        if key not in made:
            made[key] = folder / str(len(made))
            given = [pair for pair in SIZES if pair.split("=")[0] not in {one.split("=")[0] for one in options}]
            sizes = [word for pair in given for word in ("--set", pair)]
            arguments = ["convert", f"encoder-decoder-{encoding}", "-o", str(made[key]), *sizes, "--threads", "1"]
            done = CliRunner().invoke(group, [*arguments, *options])
            assert done.exit_code == 0, done.output
        return made[key]

    return convert


@pytest.fixture(scope="module")
def rope(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    source = model("rope")
    return source, exported(source, tmp_path_factory.mktemp("rope"))


def t5(bundle: Callable[..., Path]) -> Path:
    return bundle("t5", "--max-length", "9", "--length", "2", "--length", "7", "--set", "layers=1")


def inputs(rows: int = 2, far: int = 5, new: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "input_ids": rng.integers(1, 61, (rows, far)),
        "decoder_input_ids": rng.integers(1, 61, (rows, new)),
    }


# -- the definition --------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["t5", "absolute", "rope"])
def test_calls_with_a_cache_are_one_pass(encoding: str) -> None:
    """Written out by hand: the encoder once, then the decoder over everything, no cache and no parts."""
    source = model(encoding)
    module = source.module.double()
    given = {name: torch.from_numpy(array) for name, array in inputs().items()}
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    names = [spec.name for spec in source.outputs]
    with torch.inference_mode():
        whole = dict(zip(names, module(**given, attention_mask=mask), strict=True))
        # the padded row as if it were alone
        short = {"input_ids": given["input_ids"][1:, :3], "decoder_input_ids": given["decoder_input_ids"][1:]}
        alone = dict(zip(names, module(**short), strict=True))
        past: dict[str, Tensor] = {}
        for step in range(4):
            now = {**given, "decoder_input_ids": given["decoder_input_ids"][:, step : step + 1]}
            found = dict(zip(names, module(**now, attention_mask=mask, **past), strict=True))
            past = {
                name.replace("present", "past_key_values"): value
                for name, value in found.items()
                if ".decoder." in name
            }
            agree(found["logits"][:, 0], whole["logits"][:, step], "model", np.float64)
    agree(alone["logits"][0], whole["logits"][1], "model", np.float64)
    assert set(past) == {f"past_key_values.{i}.decoder.{what}" for i in (0, 1) for what in ("key", "value")}
    assert whole["encoder_last_hidden_state"].shape == (2, 5, 20)
    agree(past["past_key_values.1.decoder.value"], whole["present.1.decoder.value"], "model", np.float64)


def test_the_encoders_states_reach_every_layer() -> None:
    source = model("rope")
    given = {name: torch.from_numpy(array) for name, array in inputs().items()}
    with torch.inference_mode():
        first = source.module(**given)
        given["input_ids"] = given["input_ids"].flip(1)
        second = source.module(**given)
    changed = {s.name for s, a, b in zip(source.outputs, first, second, strict=True) if not torch.equal(a, b)}
    # the first layer's own cache is written before it reads the encoder
    assert changed == {spec.name for spec in source.outputs} - {"present.0.decoder.key", "present.0.decoder.value"}


def test_what_it_says_of_itself() -> None:
    source = model("absolute", f"max_positions={LIMIT}")
    assert source.limits.max_length == LIMIT
    assert source.limits.limited_axes == [SEQUENCE, "encoder_sequence_length"]
    assert (source.promises.causal, source.promises.positional, source.promises.shift_invariant) == (True, True, False)
    assert model("t5").promises.shift_invariant
    assert [part.spec.file for part in source.parts] == ["encoder_model.onnx", "decoder_model.onnx"]
    encoder, decoder = (part.spec for part in source.parts)
    assert [spec.name for spec in encoder.outputs][:2] == ["last_hidden_state", "present.0.encoder.key"]
    assert [spec.name for spec in decoder.inputs][:3] == ["input_ids", "attention_mask", "encoder_attention_mask"]
    assert decoder.input_names["past_key_values.1.encoder.value"] == "present.1.encoder.value"
    assert decoder.input_names["encoder_attention_mask"] == "attention_mask"


# -- other encoders --------------------------------------------------------------------------------


class Sounds(nn.Module):
    """An encoder of features of a fixed size, as Whisper's: no mask, no axis of its own."""

    makes_mask = False
    states_axis: Axis = 6
    contracts: tuple[LengthContract, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(7, 20)
        self.encodings: list[Encoding] = [NoPE()]

    @property
    def inputs(self) -> list[InputSpec]:
        return [InputSpec(name="input_features", dtype="float32", axes=[BATCH, 7, 12], role="values")]

    def forward(self, input_features: Tensor) -> Tensor:
        return torch.tanh(self.map(input_features[:, :, ::2].transpose(1, 2)))


def sounds() -> Source:
    torch.manual_seed(0)
    config = DecoderConfig.of(hidden=20, heads=5, feedforward=37, vocab=61, layers=1, cross_attention=True, tied=False)
    encoding = builtin.builtin_source(
        "decoder-absolute", task=None, settings_given=("hidden=20", "max_positions=9")
    ).module
    decoder = Decoder(config, encoding.decoder.encodings[0])
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.4)
    whole = EncoderDecoderModel(Sounds(), decoder, LanguageModel(config, decoder.token))
    return Source.of(model_of(whole, "text-generation"), name="sounds", kind="builtin", sha256="0" * 64)


@pytest.mark.all
def test_an_encoder_of_features(tmp_path: Path) -> None:
    source = sounds()
    assert source.limits.limited_axes == [SEQUENCE]
    assert [spec.name for spec in source.inputs][:2] == ["input_features", "decoder_input_ids"]
    report = proof(source, tmp_path)
    assert report.passed, report.describe()
    assert any(point.calls for point in report.points)
    assert {item.verdict for item in report.invariants} == {"pass"}
    assert "left padding changes nothing" in {item.name for item in report.invariants}


# -- proof -----------------------------------------------------------------------------------------


@pytest.mark.all
def test_the_whole_grid_with_limits_in_both_parts(bundle: Callable[..., Path]) -> None:
    folder = bundle("absolute", "--set", f"max_positions={LIMIT}")
    report = Report.from_json((folder / "parity.json").read_bytes())
    assert report.passed
    refused = {
        (point.length, point.encoder_length): point.note for point in report.points if point.verdict == "rejected"
    }
    assert refused[LIMIT + 1, LIMIT] == "rejected: input longer than 13 positions"
    assert refused[1, LIMIT + 1] == "rejected: encoder input longer than 13 positions"
    assert all(
        point.encoder_length != point.length for point in report.points if point.batch == 1 and point.length < 11
    )
    assert {point.padding for point in report.points} == {"none", "right", "left", "ragged"}
    assert {output.name for output in read(folder).outputs} == {p.output for p in report.points if p.output}
    assert {item.verdict for item in report.invariants} == {"pass"}
    assert any(item.name.endswith("greedy decode steps choose PyTorch's tokens") for item in report.invariants)


@pytest.mark.all
@pytest.mark.parametrize(
    ("file", "tensor", "where"),
    [
        ("encoder_model.onnx", "encoder.groups.1.attention.value.bias", "layer 1"),
        ("encoder_model.onnx", "decoder.layers.1.cross_attention.key.bias", "layer 1"),
        ("decoder_model.onnx", "decoder.layers.1.cross_attention.query.bias", "layer 1"),
        ("decoder_model.onnx", "decoder.layers.0.attention.value.bias", "layer 0"),
    ],
)
def test_a_wrong_number_in_either_graph_is_located(
    file: str, tensor: str, where: str, rope: tuple[Source, Path], tmp_path: Path
) -> None:
    source, folder = rope
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    graph = onnx.load(tmp_path / file)
    found = next(one for one in graph.graph.initializer if one.name == tensor)
    found.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(found) + np.float32(0.5), tensor))
    onnx.save(graph, tmp_path / file)
    report = prove(source, tmp_path, lengths=(2,), threads=1)
    assert not report.passed
    assert report.failure_location is not None
    assert f"It starts in {where}" in report.failure_location
    assert tensor in report.failure_location


@pytest.mark.all
def test_swapped_feeds_fail(rope: tuple[Source, Path]) -> None:
    """The decoder reads the first layer's keys of the encoder in the second, and the other way round."""
    source, folder = rope
    decoder = source.parts[1]
    feeds = dict(decoder.spec.input_names)
    for what in ("key", "value"):
        first, second = (f"past_key_values.{i}.encoder.{what}" for i in (0, 1))
        feeds[first], feeds[second] = feeds[second], feeds[first]
    swapped = dataclasses.replace(decoder, spec=msgspec.structs.replace(decoder.spec, input_names=feeds))
    wrong = msgspec.structs.replace(source, parts=[source.parts[0], swapped])
    report = prove(wrong, folder, lengths=(2,), threads=1)
    failed = {point.output for point in report.points if point.verdict == "fail"}
    assert "logits" in failed
    assert not {name for name in failed if ".encoder." in name}


@pytest.mark.all
def test_a_step_does_not_read_the_encoder(bundle: Callable[..., Path]) -> None:
    graph = onnx.load(t5(bundle) / "decoder_model.onnx")
    assert not [one.name for one in graph.graph.initializer if one.name.startswith("encoder.")]
    assert not [node for node in graph.graph.node if node.op_type == "If"]
    names = {one.name for one in graph.graph.initializer}
    assert not {name for name in names if "cross_attention.key" in name or "cross_attention.value" in name}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            ("rope", "--cache", "static", "--length", "7", "--set", "layers=1"),
            marks=pytest.mark.all,
        ),
        pytest.param(
            ("relative-key", "--set", "max_positions=5", "--beyond", "clip", "--length", "7", "--set", "layers=1"),
            marks=pytest.mark.all,
        ),
        pytest.param(
            ("rope", "--rotation", "at-read", "--task", "features", "--inline", "--length", "2", "--set", "layers=1"),
            marks=pytest.mark.all,
        ),
    ],
)
def test_options_of_conversion(options: tuple[str, ...], bundle: Callable[..., Path]) -> None:
    folder = bundle(*options)
    assert read(folder).parity
    assert posexport.load(folder, threads=1).run(inputs())


# -- the bundle ------------------------------------------------------------------------------------


def test_it_runs_and_its_steps_agree(bundle: Callable[..., Path]) -> None:
    session = posexport.load(t5(bundle), threads=1)
    source = model("t5", "layers=1")
    given = inputs()
    with torch.inference_mode():
        wanted = source.module(**{name: torch.from_numpy(array) for name, array in given.items()})
    found = session.run(given)
    for spec, value in zip(source.outputs, wanted, strict=True):
        agree(found[spec.name], value, "model in float32", np.float32)
    first = session.run({**given, "decoder_input_ids": given["decoder_input_ids"][:, :3]})
    past = {k.replace("present", "past_key_values"): v for k, v in first.items() if ".decoder." in k}
    last = session.run({**given, "decoder_input_ids": given["decoder_input_ids"][:, 3:], **past})
    agree(last["logits"][:, 0], found["logits"][:, 3], "model in float32", np.float32)


def test_the_encoder_alone(bundle: Callable[..., Path]) -> None:
    session = posexport.load(t5(bundle), threads=1)
    given = inputs()
    whole = session.run(given, outputs=["encoder_last_hidden_state"])
    alone = session.run({"input_ids": given["input_ids"]}, outputs=["encoder_last_hidden_state"])
    np.testing.assert_array_equal(*(found["encoder_last_hidden_state"] for found in (whole, alone)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"input_ids": None},
            "missing input input_ids; this bundle takes input_ids, attention_mask, decoder_input_ids",
        ),
        ({"decoder_input_ids": None}, "missing input decoder_input_ids"),
        (
            {"input_ids": np.zeros((1, 5), int)},
            r"decoder_input_ids has batch_size 2, input_ids has 1; give both the same",
        ),
        ({"attention_mask": np.ones((2, 4), int)}, "encoder_sequence_length 4, input_ids has 5; give both the same"),
        ({"input_ids": np.full((2, 5), 61)}, "input_ids holds 61 at .* ids from 0 to 60"),
        ({"input_ids": np.ones((2, 14), int)}, r"input_ids has encoder_sequence_length 14, .* at most 13 .*shorten it"),
        ({"decoder_input_ids": np.ones((2, 14), int)}, "decoder_input_ids has sequence_length 14, .* at most 13"),
        (
            {"past_key_values.0.decoder.key": np.zeros((2, 5, 3, 4), np.float32)},
            "missing input past_key_values.0.decoder.value: 1 of 4 cache inputs are given",
        ),
        ({"past_key_values.2.decoder.key": np.zeros((2, 5, 3, 4))}, "unknown input past_key_values.2.decoder.key"),
        ({"past_key_values.0.encoder.key": np.zeros((2, 5, 3, 4))}, "unknown input past_key_values.0.encoder.key"),
        ({"decoder_attention_mask": np.ones((2, 9), int)}, "total_sequence_length 9, .* mask over past and new tokens"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, Any], says: str, bundle: Callable[..., Path]) -> None:
    session = posexport.load(bundle("absolute", "--set", f"max_positions={LIMIT}"), threads=1)
    given = {name: value for name, value in {**inputs(), **changes}.items() if value is not None}
    with pytest.raises(PosexportError, match=says):
        session.run(given)


def test_each_graph_refuses_alone(bundle: Callable[..., Path]) -> None:
    """Whoever runs the graphs without this library meets the guards in both."""
    import onnxruntime

    folder = bundle("absolute", "--set", f"max_positions={LIMIT}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for file in ("encoder_model.onnx", "decoder_model.onnx"):
        session = onnxruntime.InferenceSession(folder / file, options, providers=["CPUExecutionProvider"])
        sizes = {"batch_size": 1, "sequence_length": 1, "total_sequence_length": 1, "past_sequence_length": 0}
        for far, fits in ((LIMIT, True), (LIMIT + 1, False)):
            sizes["encoder_sequence_length"] = far
            feeds = {
                arg.name: np.ones(
                    [sizes.get(axis, axis) for axis in arg.shape], np.int64 if "int64" in arg.type else np.float32
                )
                for arg in session.get_inputs()
            }
            if fits:
                assert session.run(None, feeds)
                continue
            with pytest.raises(Exception, match="encoder input longer than 13 positions"):
                session.run(None, feeds)


def test_verify_by_the_sample_and_against_the_source(bundle: Callable[..., Path]) -> None:
    folder = str(t5(bundle))
    assert CliRunner().invoke(group, ["verify", folder, "--threads", "1"]).exit_code == 0
    sizes = [word for pair in sized("layers=1") for word in ("--set", pair)]
    against = ["--against", "encoder-decoder-t5", *sizes, "--length", "3", "--threads", "1"]
    done = CliRunner().invoke(group, ["verify", folder, *against])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(group, ["verify", f"{folder}/encoder_model.onnx", *against])
    assert isinstance(done.exception, PosexportError)
    assert "is exported as encoder_model.onnx and decoder_model.onnx" in str(done.exception)
    done = CliRunner().invoke(group, ["verify", folder, "--against", "decoder-rope"])
    assert "decoder-rope is exported as one graph" in str(done.exception)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["files"].pop("decoder_model.onnx"), "does not list decoder_model.onnx"),
        (lambda m: m["parts"].pop(), "none of its parts gives logits"),
        (
            lambda m: m["parts"].reverse(),
            "decoder_model.onnx takes past_key_values.0.encoder.key, and nothing that fits",
        ),
        (
            lambda m: m["parts"][1]["input_names"].pop("input_ids"),
            "decoder_model.onnx takes input_ids, and nothing that fits",
        ),
        (
            lambda m: m["parts"][1]["input_names"].update(other="input_ids"),
            "decoder_model.onnx feeds or gives what it does not",
        ),
        (lambda m: m["parts"][0]["output_names"].update(last_hidden_state="input_ids"), "a name that is already used"),
        (
            lambda m: m["parts"][1]["input_names"].update(input_ids="past_key_values.0.decoder.key"),
            "nothing that fits feeds it",
        ),
    ],
)
def test_a_manifest_whose_parts_do_not_fit(
    change: Callable[[Any], object], says: str, bundle: Callable[..., Path]
) -> None:
    whole: Manifest = read(t5(bundle))
    assert decode(encode(whole)) == whole
    altered = msgspec.json.decode(encode(whole))
    change(altered)
    with pytest.raises(PosexportError, match=says):
        decode(msgspec.json.encode(altered))


@pytest.mark.all
def test_large_weights_stand_beside_their_graph(
    rope: tuple[Source, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posexport.conversion.export.save.EXTERNAL_ABOVE", 0)
    source = rope[0]
    exported(source, tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    graphs = ["decoder_model.onnx", "encoder_model.onnx"]
    assert files == sorted([*graphs, *(f"{graph}.data" for graph in graphs)])
    report = prove(source, tmp_path, lengths=(2,), threads=1)
    assert report.passed, report.describe()


def test_a_manifest_that_was_altered_in_a_part(bundle: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shutil.copytree(t5(bundle), folder)
    manifest = read(folder)
    decoder = manifest.parts[1]
    smaller = [msgspec.structs.replace(s, size=7) if s.role == "tokens" else s for s in decoder.inputs]
    changed = msgspec.structs.replace(decoder, inputs=smaller)
    seal(folder, msgspec.structs.replace(manifest, parts=[manifest.parts[0], changed]))
    with pytest.raises(PosexportError, match=r"gives other inputs than decoder_model.onnx does: it was altered"):
        verify(folder)
