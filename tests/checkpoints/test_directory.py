"""Missing files and links."""

import os
import shutil
from pathlib import Path

import pytest
from checkpoints import change, configure, read, refusal, same


def test_missing_things(bert: Path, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing")
    assert "is not a directory" in refusal(bert / "config.json")
    (bert / "model.safetensors").unlink()
    assert "has no weights: it needs model.safetensors" in refusal(bert)
    (bert / "config.json").unlink()
    assert "has no config.json" in refusal(bert)
    (bert / "gliner_config.json").write_text("{}")
    assert "gliner_config.json has no encoder_config" in refusal(bert)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_links_that_leave_the_directory(bert: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    if (bert / name).exists():
        (bert / name).rename(outside)
    else:
        outside.write_text("{}")
    (bert / name).symlink_to(outside)
    assert f"{name} is a link that leaves the directory" in refusal(bert)


def test_links_inside_the_directory_and_to_it(bert: Path, tmp_path: Path) -> None:
    before = read(bert)
    (bert / "model.safetensors").rename(bert / "weights")
    (bert / "model.safetensors").symlink_to("weights")
    link = tmp_path / "link"
    link.symlink_to(bert)
    assert same(before, read(link))
    (bert / "weights").unlink()
    assert "model.safetensors is a link that leads nowhere" in refusal(bert)
    (bert / "weights").symlink_to("model.safetensors")
    assert "model.safetensors is a link that leads nowhere" in refusal(bert)


def cached(source: Path, root: Path) -> Path:
    """The layout of a Hugging Face cache; the snapshot's directory."""
    entry = root / "hub" / "models--someone--tiny"
    snapshot = entry / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (entry / "blobs").mkdir()
    for number, file in enumerate(sorted(path for path in source.iterdir() if path.is_file())):
        shutil.move(file, entry / "blobs" / f"blob{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/blob{number}")
    return snapshot


def test_a_hugging_face_cache(bert: Path, tmp_path: Path) -> None:
    (bert / "tokenizer.json").write_text("{}")
    before = read(bert)
    snapshot = cached(bert, tmp_path)
    after = read(snapshot)
    assert same(before, after)
    assert before.sha256 == after.sha256
    assert after.files["tokenizer.json"].read_text() == "{}"
    entry = snapshot.parent.parent
    assert "snapshots" in refusal(entry)

    other = entry.parent / "models--someone--else" / "blobs"
    other.mkdir(parents=True)
    (entry / "blobs" / "blob1").rename(other / "blob1")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../models--someone--else/blobs/blob1")
    assert "link that leaves the directory" in refusal(snapshot)


def test_blobs_beside_any_other_directory_are_outside(bert: Path, tmp_path: Path) -> None:
    snapshot = cached(bert, tmp_path)
    entry = snapshot.parent.parent
    entry.rename(entry.parent / "not-a-cache")
    assert "link that leaves the directory" in refusal(entry.parent / "not-a-cache" / "snapshots" / "0123abc")


def test_a_pipe_is_no_file(bert: Path) -> None:
    (bert / "config.json").unlink()
    os.mkfifo(bert / "config.json")
    assert "config.json is not a regular file" in refusal(bert)


def test_the_digest_is_of_configuration_and_weights(bert: Path, tmp_path: Path) -> None:
    first = read(bert).sha256
    (bert / "tokenizer.json").write_text("{}")
    assert read(bert).sha256 == first
    moved = tmp_path / "elsewhere"
    shutil.copytree(bert, moved)
    assert read(moved).sha256 == first
    change(bert, lambda t: t["embeddings.LayerNorm.bias"].add_(1))
    assert read(bert).sha256 != first
    configure(moved, hidden_act="relu")
    assert read(moved).sha256 != first


def test_files_for_the_bundle(bert: Path) -> None:
    for name in ("vocab.txt", "tokenizer_config.json", "README.md", "model.py"):
        (bert / name).write_text("x")
    assert set(read(bert).files) == {"config.json", "vocab.txt", "tokenizer_config.json"}
