"""Checkpoints of transformers 5: its spellings, and what it reads otherwise than 4 (ci/golden).

Where a rotation depends on the length, also how both differ from the definition.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, Tensors, change, configure, read, refusal, same
from safetensors.torch import load_file

from posexport.base.spec import BATCH
from posexport.encodings.rope.config import from_config
from posexport.encodings.rope.plain import Plain
from posexport.errors import PosexportError
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.subjects.runner import in_calls
from posexport.sources.source import Source
from tests.tolerances import agree, agree_each, allowed

Copy = Callable[[str], Path]
Json = dict[str, Any]
WRITTEN = sorted(path.name for path in GOLDEN.iterdir() if path.name.endswith("-v5"))
UNLIKE = ("gemma3", "t5", "mt5", "bert")
#: of an output's scale
BOUND = allowed("model in float32", np.float32)


def configuration(name: str) -> Json:
    content: Json = json.loads((GOLDEN / name / "config.json").read_text())
    return content


def cases(name: str) -> list[Json]:
    content: list[Json] = json.loads((GOLDEN.parent / name).read_text())
    return content


# -- what is written -------------------------------------------------------------------------------


def test_every_other_spelling_is_there() -> None:
    assert len(WRITTEN) == 13
    old = {"rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct", "rotary_emb_base"}
    for name in WRITTEN:
        config = configuration(name)
        assert config["transformers_version"] == "5.23.0"
        before = configuration(name.removesuffix("-v5"))
        assert before["transformers_version"] == "4.57.6"
        if not name.startswith(("esm", "t5", "mt5", "bert")):
            assert "rope_parameters" in config
            assert "rope_parameters" not in before
            assert set(config) & old <= ({"partial_rotary_factor"} if name.startswith("phi3") else set())


@pytest.mark.parametrize("name", [name for name in WRITTEN if not name.startswith(UNLIKE)])
def test_the_same_weights_are_the_same_model(name: str) -> None:
    """Not Gemma 3, whose sizes differ, T5, whose head is tied in 5 only, and BERT, whose head is tied in 4 only."""
    assert same(read(GOLDEN / name), read(GOLDEN / name.removesuffix("-v5")))


@pytest.mark.parametrize(("name", "key"), [("t5-gated", "scale_decoder_outputs"), ("mt5", "transformers_version")])
def test_a_tied_head_says_nothing_of_scaling(copy: Copy, name: str, key: str) -> None:
    """5 calls every T5 tied; golden files show that what these heads read is not scaled."""
    directory = copy(f"{name}-forconditionalgeneration-v5")
    assert configuration(directory.name)["tie_word_embeddings"] is True
    heads = []
    for value in (configuration(directory.name)[key], {"transformers_version": "4.57.6"}.get(key, True)):
        changed: Json = {key: value}
        configure(directory, **changed)
        module = read(directory).module
        assert isinstance(module, EncoderDecoderModel)
        assert module.head is not None
        heads.append(module.head.scale)
    assert heads == [1.0, configuration(directory.name)["d_model"] ** -0.5]


def test_a_decoder_that_is_not_tied_has_a_bias_of_its_own(copy: Copy) -> None:
    """5.23 writes the head's too, and adds the decoder's alone; 4 has one, under the head's name."""
    directory = copy("bert-absolute-v5")
    assert configuration(directory.name)["tie_word_embeddings"] is False
    held: Tensors = {}
    change(directory, held.update)
    head, own = "cls.predictions.bias", "cls.predictions.decoder.bias"
    assert not torch.equal(held[head], held[own])
    before = read(directory)
    change(directory, lambda tensors: tensors[head].add_(1))
    assert same(read(directory), before)
    change(directory, lambda tensors: tensors.pop(head))
    assert same(read(directory), before)
    change(directory, lambda tensors: tensors.update({head: held[own]}))
    configure(directory, transformers_version="4.57.6")
    assert same(read(directory), before)
    change(directory, lambda tensors: tensors.pop(own))
    assert same(read(directory), before)
    change(directory, lambda tensors: tensors.update({own: held[head]}))
    assert "cls.predictions.decoder.bias are one weight here, and differ in the file" in refusal(directory)


def test_esm_writes_its_frequencies_once(copy: Copy) -> None:
    directory = copy("esm-fortokenclassification-v5")
    before = read(directory)
    table = "esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"
    held: Tensors = {}
    change(directory, held.update)
    assert table in held
    configure(directory, rope_theta=60.0)
    assert f"{table} differs from the family's formula" in refusal(directory)
    change(directory, lambda tensors: tensors.pop(table))
    other = read(directory)
    assert not same(other, before)
    assert other.encoding is not None
    assert other.encoding.parameters["base"] == 60.0


@pytest.mark.parametrize("name", ["gemma-forcausallm", "gemma2-forcausallm", "gemma3-forcausallm-v5"])
def test_a_gemma_whose_tokens_see_later_ones_is_refused(copy: Copy, name: str) -> None:
    directory = copy(name)
    configure(directory, use_bidirectional_attention=None)
    assert read(directory).task == "text-generation"
    configure(directory, use_bidirectional_attention=True)
    assert "sets use_bidirectional_attention" in refusal(directory)
    if name.startswith("gemma3"):
        source = read(directory, "features")
        assert not source.limits.kv_cache
        assert [spec.name for spec in source.outputs] == ["last_hidden_state"]


def test_relative_positions_that_5_leaves_out_are_refused(copy: Copy) -> None:
    """It reads no ``position_embedding_type``, and saves a BERT without its tables of distances."""
    directory = copy("bert-relative_key")
    configure(directory, transformers_version="5.23.0")

    def drop(tensors: Tensors) -> None:
        for name in list(tensors):
            if "distance_embedding" in name:
                del tensors[name]

    change(directory, drop)
    assert "needed ones are not in the file" in refusal(directory)


# -- what is read otherwise ------------------------------------------------------------------------

CHANGED = cases("golden_rope_v5.json")
PARTNERS = [case for case in cases("golden_rope.json") if "transformers_version" in case["config"]]


@pytest.mark.parametrize(("four", "five"), list(zip(PARTNERS, CHANGED, strict=True)))
def test_a_file_means_what_its_version_reads(four: Json, five: Json) -> None:
    """`four` itself is compared in tests/encodings/test_rope.py, with all that means the same to both."""
    four, config = four["config"], five["config"]
    unmarked = {key: value for key, value in config.items() if key != "transformers_version"}
    assert unmarked == {key: value for key, value in four.items() if key != "transformers_version"}
    assert (four["transformers_version"], config["transformers_version"]) == ("4.57.6", "5.23.0")
    schedule = from_config(config, head_size=five["head_size"])
    for length, want in five["lengths"].items():
        got = schedule.frequencies(torch.tensor([[int(length) - 1]]), torch.float64)[0].numpy()
        agree_each(got, want["inv_freq"], "frequencies", np.float32, 3)
        agree(schedule.attention_factor, want["attention_factor"], "frequencies", np.float32)
    assert from_config(four, head_size=five["head_size"]) != schedule
    for unknown in (unmarked, {**unmarked, "transformers_version": None}):
        with pytest.raises(PosexportError, match=r"4 reads .* and 5 reads .*; add the transformers_version"):
            from_config(unknown, head_size=five["head_size"])
    # 4 knows no rope_parameters: whoever wrote it meant 5's
    table = unmarked.pop("rope_scaling")
    for version in ("4.57.6", "5.23.0", None):
        new = {**unmarked, "rope_parameters": table, "transformers_version": version}
        assert from_config(new, head_size=five["head_size"]) == schedule


def test_two_tables_must_agree() -> None:
    table = {"rope_type": "linear", "factor": 2.0}
    both = {"rope_parameters": table, "rope_scaling": table, "rope_theta": 500.0}
    assert from_config(both, head_size=12) == from_config({**both, "rope_scaling": None}, head_size=12)
    assert from_config({"rope_scaling": {}, "rope_parameters": {"rope_theta": 7.0}}, head_size=12) == Plain(
        dim=12, base=7.0
    )
    with pytest.raises(PosexportError, match=r"rope_parameters and rope_scaling .* say different things"):
        from_config({**both, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}, head_size=12)


# -- rotations that depend on the length -----------------------------------------------------------

BY_LENGTH = [f"{stem}-forcausallm{end}" for stem in ("llama-dynamic", "phi3-longrope") for end in ("", "-v5")]


def stored(name: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / name / "expected.safetensors")


def feeds(source: Source, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """A whole sequence with an empty past; positions that may be given are left to the mask."""
    by_role = {"tokens": ids, "mask": mask, "positions": np.full_like(ids, -1)}
    found = {spec.name: by_role.get(spec.role) for spec in source.inputs}
    for spec in source.inputs:
        if spec.role == "cache":
            sizes = [{BATCH: len(ids)}.get(axis, 0) if isinstance(axis, str) else axis for axis in spec.axes]
            found[spec.name] = np.zeros(sizes)
    return {key: value for key, value in found.items() if value is not None}


def run(source: Source, ids: torch.Tensor, mask: torch.Tensor, calls: tuple[int, ...] = ()) -> list[np.ndarray]:
    """In float64."""
    reference = PrecisionCopy(source.module, torch.float64, outputs=len(source.outputs))
    given = feeds(source, ids.long().numpy(), mask.long().numpy())
    return in_calls(reference, given, source, calls or (ids.shape[1],))


def off(got: np.ndarray, wanted: torch.Tensor) -> float:
    assert got.shape == tuple(wanted.shape)
    return float(np.abs(got - wanted.numpy()).max() / wanted.abs().max())


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("calls", [(18, 1, 1, 1, 1, 11), (12, 14, 1, 6)])
def test_the_same_calls_give_what_transformers_gives(name: str, calls: tuple[int, ...]) -> None:
    """One sequence, a fresh model: steps and a part of the prompt across the length at which the formula changes."""
    source, known = read(GOLDEN / name), stored(name)
    point = "-".join(map(str, ("calls", *calls)))
    ids, mask = known[f"{point}.input_ids"], known[f"{point}.attention_mask"]
    logits, key, *_ = run(source, ids, mask, calls)
    assert source.limits.boundaries == [20]
    assert off(logits, known[f"{point}.logits_in_calls"]) < BOUND
    assert off(key, known[f"{point}.key_in_calls"]) < BOUND
    # keys stay as they were turned, so that one call is another computation
    logits, key, *_ = run(source, ids, mask)
    assert off(logits, known[f"{point}.logits_in_calls"]) > 1e-2
    assert off(key, known[f"{point}.key_in_calls"]) > 1e-2


@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_row_is_turned_by_its_own_length_where_transformers_takes_the_batchs(name: str) -> None:
    source, known = read(GOLDEN / name), stored(name)
    ids, mask, wanted = (known[f"batch-33-12.{key}"] for key in ("input_ids", "attention_mask", "logits_in_batch"))
    both = run(source, ids, mask)[0][:, :12]
    alone = run(source, ids[1:, :12], mask[1:, :12])[0]
    assert off(both[:1], wanted[:1]) < BOUND
    agree(both[1:], alone, "model", np.float64)
    assert off(both[1:], wanted[1:]) > 1e-2
    # with the batch's length it is theirs
    longest = torch.cat([ids[1:, :12], torch.full_like(ids[1:, 12:], 3)], 1)
    assert off(run(source, longest, torch.ones_like(longest))[0][:, :12], wanted[1:]) < BOUND


@pytest.mark.parametrize("name", BY_LENGTH)
def test_nothing_is_remembered_where_transformers_remembers_the_longest_call(name: str) -> None:
    """Its dynamic NTK keeps the frequencies of the longest call, until one is shorter than the original length."""
    source, known = read(GOLDEN / name), stored(name)
    ids, mask, wanted = (known[f"state-25.{key}"] for key in ("input_ids", "attention_mask", "logits_behind_33"))
    run(source, torch.full((1, 33), 5), torch.ones(1, 33))
    found = off(run(source, ids, mask)[0], wanted)
    assert found > 1e-2 if "dynamic" in name else found < BOUND
    # with the frequencies of 33 tokens it is theirs
    longer = torch.cat([ids, torch.full((1, 8), 3, dtype=ids.dtype)], 1)
    assert off(run(source, longer, torch.ones_like(longer))[0][:, :25], wanted) < BOUND
