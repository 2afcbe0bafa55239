"""``--drop-weights``: tensors that are left out by patterns of their names."""

from pathlib import Path

import msgspec
import pytest
import torch
from checkpoints import change, outputs, read, refusal

from posexport.base.options.recipe import Recipe
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.checkpoints.dropped import suggestion
from posexport.conversion.manifest import recipe_of
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.prepare import recorded_options
from posexport.sources.source import Source

HEADS = ("cls.species", "cls.chain")


def with_foreign_heads(folder: Path) -> None:
    change(
        folder, lambda t: t.update({f"{head}.{leaf}": torch.ones(6) for head in HEADS for leaf in ("weight", "bias")})
    )


def without(folder: Path, *patterns: str) -> Source:
    return checkpoint_source(folder, task=None, allow_pickle=False, drop_weights=patterns)


def test_foreign_heads_are_left_out_and_named(masked: Path) -> None:
    before = read(masked)
    with_foreign_heads(masked)
    sentence = refusal(masked)
    assert "4 tensors of the file are not used" in sentence
    assert sentence.endswith(
        "or leave out a head that you do not need with --drop-weights 'cls.chain.*' --drop-weights 'cls.species.*'"
    )
    after = without(masked, "cls.species.*", "cls.chain.weight", "*chain.bias")
    assert torch.equal(outputs(after)[0], outputs(before)[0])
    assert [remark for remark in after.remarks if "--drop-weights" in remark] == [
        "left out by --drop-weights cls.species.*: cls.species.bias, cls.species.weight",
        "left out by --drop-weights cls.chain.weight: cls.chain.weight",
        "left out by --drop-weights *chain.bias: cls.chain.bias",
    ]


def test_a_pattern_that_matches_nothing_is_an_error(masked: Path) -> None:
    with pytest.raises(PosexportError, match=r"--drop-weights cls.specie.\* matches no tensor of .*, which has bert"):
        without(masked, "cls.specie.*")


def test_needed_tensors_cannot_be_left_out(masked: Path) -> None:
    with pytest.raises(PosexportError, match="2 needed ones are not in the file"):
        without(masked, "cls.predictions.transform.dense.*")


def test_parts_of_the_model_are_not_suggested(bert: Path) -> None:
    change(bert, lambda t: t.update({"encoder.gate.weight": torch.ones(2)}))
    assert "--drop-weights" not in refusal(bert)


def test_a_long_suggestion_ends() -> None:
    assert suggestion(["a.weight", "a.bias", "scale"]) == "--drop-weights 'a.*' --drop-weights 'scale'"
    assert suggestion([f"h{i}.weight" for i in range(9)]).endswith("'h3.*' ...")


def test_a_bundle_records_the_patterns_for_verify(masked: Path) -> None:
    with_foreign_heads(masked)
    asked = ConvertOptions(drop_weights=("cls.species.*", "cls.chain.*"))
    source = load_source(str(masked), asked.load)
    recipe = recipe_of(source, asked, 18)
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe
    record = msgspec.to_builtins(recipe)
    options = recorded_options(record, LoadOptions(), str(masked), kind="huggingface", name="")
    assert options.drop_weights == asked.drop_weights
    assert load_source(str(masked), options).remarks == source.remarks
    assert recorded_options(record, LoadOptions(), "encoder-rope", kind="huggingface", name="").drop_weights == ()


@pytest.mark.parametrize("source", ["encoder-rope", "model.py:make", torch.nn.Linear(2, 2)])
def test_it_is_for_checkpoints(source: str | torch.nn.Module) -> None:
    with pytest.raises(PosexportError, match=r"for checkpoints.*leave (it|them) out"):
        load_source(source, LoadOptions(drop_weights=("a",)))


def test_through_transformers_unread_tensors_are_left_out(masked: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    with_foreign_heads(masked)

    def through(*patterns: str) -> Source:
        return load_source(str(masked), LoadOptions(definition="transformers", drop_weights=patterns))

    assert any("cls.species.bias" in remark for remark in through("cls.species.*").remarks)
    with pytest.raises(PosexportError, match=r"leaves out cls\.predictions\.bias, which BertForMaskedLM"):
        through("cls.predictions.bias")
