"""``num_labels`` beside an ``id2label`` of another size: the head's weight decides."""

from pathlib import Path

import pytest
import torch
from checkpoints import change, configure, outputs, read, refusal

from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions

NAMES = {"0": "no", "1": "yes"}


def with_labels(folder: Path, count: int) -> None:
    """A classification head with ``count`` labels."""
    configure(folder, architectures=["BertForTokenClassification"], id2label=NAMES, label2id={"no": 0, "yes": 1})
    change(
        folder, lambda t: t.update({"classifier.weight": torch.ones(count, 20), "classifier.bias": torch.ones(count)})
    )


@pytest.mark.parametrize(
    ("stated", "stored", "names"),
    [
        # rxnfp's bert_ft_10k_25s: transformers 5.24 has 5 labels too
        (5, 5, [f"LABEL_{number}" for number in range(5)]),
        (5, 2, []),
    ],
)
def test_the_head_s_weight_decides(stated: int, stored: int, names: list[str], masked: Path) -> None:
    with_labels(masked, stored)
    configure(masked, num_labels=stated)
    source = read(masked)
    assert outputs(source)[0].shape[-1] == stored
    assert source.labels == names
    (remark,) = [remark for remark in source.remarks if "num_labels" in remark]
    assert f"says num_labels = 5, and id2label names 2; the head's weight has {stored} labels" in remark
    assert remark.endswith("called LABEL_0 to LABEL_4 as in transformers") == bool(names)


def test_counts_that_agree_and_other_tasks_have_no_remark(masked: Path) -> None:
    with_labels(masked, 2)
    configure(masked, num_labels=2)
    assert not any("num_labels" in remark for remark in read(masked).remarks)
    configure(masked, num_labels=7)
    assert not any("num_labels" in remark for remark in read(masked, "features").remarks)


def test_a_head_of_neither_size_is_refused(masked: Path) -> None:
    with_labels(masked, 3)
    configure(masked, num_labels=5)
    assert "classifier.weight is [3, 20], needed [2, 20]" in refusal(masked)


@pytest.mark.parametrize("stored", [5, 2])
def test_through_transformers(stored: int, masked: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    with_labels(masked, stored)
    configure(masked, num_labels=5)
    source = load_source(str(masked), LoadOptions(definition="transformers"))
    assert outputs(source)[0].shape[-1] == stored
    assert len(source.labels) == (5 if stored == 5 else 0)
