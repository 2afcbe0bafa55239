"""Encoder-decoders of raw sound: which states are of padding, and values against transformers at other sizes."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import posexport
from posexport import PosexportError
from posexport.base.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SAMPLES,
    SEQUENCE,
    STATES_MASK,
    Axis,
    InputSpec,
    Limits,
    OutputSpec,
)
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import draw
from posexport.serve.layouts.shared import CONFIG, check_client
from posexport.sources.builtin import builtin_source
from posexport.through import halves, speech
from tests.tolerances import agree

MOONSHINE, ADAPTER = "moonshine", "speech-encoder-decoder"


def checkpoint(kind: str, folder: Path) -> Path:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from ci.through import tiny

    tiny.make(folder / kind, tiny.table()[kind])
    return folder / kind


def encoder(kind: str, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from ci.through import tiny

    cls = getattr(transformers, tiny.table()[kind]["class"])
    return cls.from_pretrained(checkpoint(kind, folder)).get_encoder()


def test_states_of_padding_are_those_of_transformers(tmp_path: Path) -> None:
    wav2vec2 = encoder(ADAPTER, tmp_path)
    lengths = torch.tensor([20, 29, 30, 31, 64, 65, 66, 199, 200])
    mask_BN = (torch.arange(200) < lengths[:, None]).long()
    for adapter in (False, True):
        states = int(wav2vec2._get_feat_extract_output_lengths(200, add_adapter=adapter))
        expected = wav2vec2._get_feature_vector_attention_mask(states, mask_BN, add_adapter=adapter)
        actual = speech._states_mask(wav2vec2, states, mask_BN, add_adapter=adapter)
        assert torch.equal(actual, expected)
        assert not expected.all()
    # too few samples for a state: transformers counts all states as real
    none_1N = (torch.arange(200) < 14)[None].long()
    expected = wav2vec2._get_feature_vector_attention_mask(38, none_1N, add_adapter=False)
    assert torch.equal(speech._states_mask(wav2vec2, 38, none_1N, add_adapter=False), expected)


def test_the_number_of_states_is_that_of_transformers(tmp_path: Path) -> None:
    moonshine = encoder(MOONSHINE, tmp_path)
    for length in [*range(895, 2100, 7), 16000, 479999]:
        expected = moonshine._get_feat_extract_output_lengths(length)
        assert speech._number_of_states(moonshine, length) == expected


def test_points_have_sounds_of_several_lengths_with_padding_on_the_right() -> None:
    sound: list[Axis] = [BATCH, SAMPLES]
    inputs = [
        InputSpec(name="input_values", dtype="float32", axes=sound, role="values"),
        InputSpec(name="attention_mask", dtype="int64", axes=sound, role="mask"),
        InputSpec(name="decoder_input_ids", dtype="int64", axes=[BATCH, SEQUENCE], role="tokens", size=9),
    ]
    limits = Limits(min_sizes={SAMPLES: 20}, proof_sizes=[{SAMPLES: 20}, {SAMPLES: 24}, {SAMPLES: 97}])
    seen, refused = set(), 0
    for point in grid(limits, inputs, lengths=[1, 5]):
        mask_BN = draw(point, inputs)["attention_mask"]
        if point.must_be_rejected:
            refused += 1
            assert mask_BN.shape[1] < 20
            continue
        counts = mask_BN.sum(1)
        assert (mask_BN == (np.arange(mask_BN.shape[1]) < counts[:, None])).all()
        assert counts.min() >= 20
        assert counts.max() == mask_BN.shape[1] or point.batch == 1
        assert (point.padding != "none") or counts.min() == mask_BN.shape[1]
        seen.add((mask_BN.shape[1], bool(counts.min() < mask_BN.shape[1])))
    assert refused
    assert seen >= {(20, False), (24, False), (97, False), (97, True)}


def test_clients_that_pass_no_mask_of_states_get_no_bundle() -> None:
    source = builtin_source("encoder-nope", task="features", settings_given=("layers=1",))
    files = {CONFIG: Path(CONFIG)}
    check_client(msgspec.structs.replace(source, files=files), "optimum", "optimum")
    states = OutputSpec(name=STATES_MASK, axes=[BATCH, ENCODER_SEQUENCE])
    with pytest.raises(PosexportError, match="which optimum does not pass to a decoder; leave --layout optimum out"):
        check_client(msgspec.structs.replace(source, files=files, outputs=[states]), "optimum", "optimum")


@pytest.mark.all
@pytest.mark.parametrize("kind", [MOONSHINE, ADAPTER])
def test_values_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = checkpoint(kind, tmp_path)
    import transformers

    from ci.through import tiny

    posexport.convert(folder, tmp_path / "bundle", verify=False, threads=1)
    session = posexport.load(tmp_path / "bundle")
    model = getattr(transformers, tiny.table()[kind]["class"]).from_pretrained(folder).eval().double()
    rng = np.random.default_rng(1)
    # moonshine's rotation goes on behind max_position_embeddings, 20
    for batch, samples, tokens in ((1, 900, 1), (4, 7001, 33), (2, 40003, 7)):
        sound_BN = rng.standard_normal((batch, samples)).astype(np.float32)
        mask_BN = (np.arange(samples) < rng.integers(samples // 2, samples, (batch, 1))).astype(np.int64)
        mask_BN[0] = 1
        ids_BT = rng.integers(4, 64, (batch, tokens))
        with torch.no_grad():
            expected = model(
                input_values=torch.from_numpy(sound_BN).double(),
                attention_mask=torch.from_numpy(mask_BN),
                decoder_input_ids=torch.from_numpy(ids_BT),
            ).logits.numpy()
        given = {"input_values": sound_BN, "attention_mask": mask_BN, "decoder_input_ids": ids_BT}
        logits = session.run(given, outputs=["logits"])["logits"]
        agree(logits, expected, "another library", np.float32)
        # without a mask: nothing is padded
        first = {"input_values": sound_BN[:1], "decoder_input_ids": ids_BT[:1]}
        logits = session.run(first, outputs=["logits"])["logits"]
        agree(logits, expected[:1], "another library", np.float32)
        if batch > 1:
            given["attention_mask"] = np.ones_like(mask_BN)
            unmasked = session.run(given, outputs=["logits"])["logits"]
            assert np.abs(unmasked[1:] - expected[1:]).max() > 1e-3 * np.abs(expected).max()
    with pytest.raises(PosexportError, match="num_samples"):
        session.run({"input_values": sound_BN[:, :19], "decoder_input_ids": ids_BT})


@pytest.mark.all
def test_a_wrong_mask_of_states_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(ADAPTER, tmp_path)
    # in the graph alone: the proof
    with monkeypatch.context() as patch:
        patch.setattr(speech, "_states_mask", lambda _, states, mask, **__: torch.ones(mask.shape[0], states) > 0)
        done = posexport.convert(folder, tmp_path / "bundle", lengths=[3], threads=1)
        assert not done.good
        assert done.report is not None
        assert "encoder_attention_mask" in done.report.to_text()
    # in the definition too: the comparison with transformers before the export
    encoded = speech.encoded_sound

    def unmasked(*given: Any) -> Any:
        states_BSC, mask_BS = encoded(*given)
        return states_BSC, torch.ones_like(mask_BS)

    monkeypatch.setattr(halves, "encoded_sound", unmasked)
    with pytest.raises(PosexportError, match="its logits are others than without"):
        posexport.convert(folder, tmp_path / "bundle", lengths=[3], threads=1)
