"""Types that posexport does not define: tiny random checkpoints, made by transformers, converted through it and proven.

In the short tier one or two of each kind, at two lengths where a proof takes long; in the long one every type that is
said to be proven, with the options of ci/through/run, which says so.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

import posexport
from posexport.through.types import PROVEN

#: decoders with a KV cache, with experts; an encoder; an encoder-decoder
AT_FEW_LENGTHS = ("olmo", "nomic_bert")
#: images, sound, series
PROVEN_FAST = ("ijepa", "pvt_v2", "hiera", "audio-spectrogram-transformer", "patchtsmixer")


def converted(kind: str, folder: Path, lengths: Sequence[int] | None, target: str) -> posexport.Conversion:
    """The checkpoint of ci/through/checkpoints.yaml, converted."""
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from ci.through import tiny

    entry = tiny.table()[kind]
    pytest.importorskip(entry.get("needs", "transformers"), exc_type=ImportError)
    tiny.make(folder / kind, entry)
    return posexport.convert(folder / kind, folder / "bundle", lengths=lengths, target=target, threads=1)


@pytest.mark.parametrize("kind", AT_FEW_LENGTHS)
def test_a_type_is_converted_and_right(kind: str, tmp_path: Path) -> None:
    done = converted(kind, tmp_path, [1, 17], "portable")
    assert done.good, done.to_text()
    assert done.manifest is not None
    assert done.manifest.task == PROVEN[kind]


@pytest.mark.all(but=PROVEN_FAST)
@pytest.mark.parametrize("kind", PROVEN)
def test_every_type_is_proven(kind: str, tmp_path: Path) -> None:
    done = converted(kind, tmp_path, None, "cpu")
    assert done.good, done.to_text()
    assert done.manifest is not None
    assert done.manifest.proven, done.verdict  # such as a point without the memory
    assert done.manifest.task == PROVEN[kind]


@pytest.mark.all
def test_a_class_without_a_task_returns_all_its_tensors(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from ci.through import tiny

    entry = {**tiny.table()["mobilebert"], "class": "MobileBertForPreTraining"}
    tiny.make(tmp_path / "checkpoint", entry)
    done = posexport.convert(tmp_path / "checkpoint", tmp_path / "bundle", lengths=[1, 17], threads=1)
    assert done.good, done.to_text()
    assert done.manifest is not None
    assert done.manifest.task == "tensors"
    assert [spec.name for spec in done.manifest.outputs] == ["prediction_logits", "seq_relationship_logits"]
    said = "MobileBertForPreTraining is of no task that posexport knows: the graph returns every tensor that it returns"
    assert said in done.remarks
    with pytest.raises(posexport.PosexportError, match=r"a bundle for tensors has no pipeline; use session\.run"):
        posexport.pipeline(tmp_path / "bundle")
