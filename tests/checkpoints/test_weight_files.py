"""Weights in every form, whole and broken."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Tensors, change, read, refusal, same
from safetensors.torch import load_file, save_file


def test_prefix_and_old_names_do_not_matter(bert: Path) -> None:
    before = read(bert)

    def rename(tensors: Tensors) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[f"bert.{old}"] = tensors.pop(name)

    change(bert, rename)
    assert same(before, read(bert))
    change(bert, lambda t: t.update({"bert.embeddings.LayerNorm.weight": torch.ones(20)}))
    assert "twice" in refusal(bert)


def test_a_mix_of_prefixed_and_plain_names_is_refused(masked: Path) -> None:
    name = "embeddings.LayerNorm.bias"
    change(masked, lambda t: t.update({name: t.pop(f"bert.{name}")}))
    sentence = refusal(masked)
    assert f"1 tensors of the file are not used ({name})" in sentence
    assert f"1 needed ones are not in the file (bert.{name})" in sentence


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_formats_become_float32(bert: Path, dtype: torch.dtype) -> None:
    change(bert, lambda t: t.update({name: value.to(dtype) for name, value in t.items()}))
    source = read(bert)
    assert {parameter.dtype for parameter in source.module.parameters()} == {torch.float32}
    assert any(str(dtype).removeprefix("torch.") in remark for remark in source.remarks)
    wanted = load_file(bert / "model.safetensors")["embeddings.word_embeddings.weight"].float()
    assert torch.equal(source.module.get_parameter("encoder.embeddings.token.weight"), wanted)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nan_and_infinity(bert: Path, value: float, dtype: torch.dtype) -> None:
    def edit(tensors: Tensors) -> None:
        tensors["encoder.layer.1.output.dense.weight"][3, 5] = value
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    change(bert, edit)
    assert "encoder.layer.1.output.dense.weight holds NaN or infinity" in refusal(bert)


def test_numbers_that_float32_cannot_hold(bert: Path) -> None:
    name = "encoder.layer.1.output.dense.weight"
    change(bert, lambda t: t.update({name: t[name].double() * 1e39}))
    assert f"{name} holds numbers that float32 cannot hold" in refusal(bert)


def test_whole_numbers_are_no_weights(bert: Path) -> None:
    name = "encoder.layer.1.output.dense.weight"
    change(bert, lambda t: t.update({name: t[name].to(torch.int8)}))
    assert f"{name} is stored in a format other than F32" in refusal(bert)


def shard(directory: Path, parts: int = 3) -> dict[str, str]:
    """Split model.safetensors; the weight map that was written."""
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    where = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        save_file({name: tensors[name] for name in names[part::parts]}, directory / file)
        where.update(dict.fromkeys(names[part::parts], file))
    directory.joinpath("model.safetensors").unlink()
    write_index(directory, where)
    return where


def write_index(directory: Path, where: Any) -> None:
    content = {"metadata": {"total_size": 1}, "weight_map": where}
    directory.joinpath("model.safetensors.index.json").write_text(json.dumps(content))


def test_shards(bert: Path) -> None:
    before = read(bert)
    where = shard(bert)
    assert same(before, read(bert))
    name, file = next(iter(where.items()))
    write_index(bert, {key: value for key, value in where.items() if key != name})
    assert f"1 only in the shards ({name})" in refusal(bert)
    write_index(bert, where | {"ghost": file})
    assert "1 tensors are only in the index (ghost)" in refusal(bert)
    write_index(bert, where | {name: next(other for other in where.values() if other != file)})
    assert f"1 in another shard ({name})" in refusal(bert)
    write_index(bert, where)
    (bert / file).unlink()
    assert f"lacks {file}" in refusal(bert)


def test_a_tensor_in_two_shards(bert: Path) -> None:
    where = shard(bert)
    first, second = sorted(set(where.values()))[:2]
    twin = next(name for name, file in where.items() if file == first)
    tensors = load_file(bert / second) | {twin: torch.zeros(1)}
    save_file(tensors, bert / second)
    assert f"{twin} is in {first} and in {second}" in refusal(bert)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "..\\secret.safetensors",
        "C:\\x.safetensors",
        "a/b.safetensors",
    ],
)
def test_an_index_that_points_elsewhere(bert: Path, name: str) -> None:
    shutil.copy(bert / "model.safetensors", bert.parent / "secret.safetensors")
    write_index(bert, dict.fromkeys(load_file(bert / "model.safetensors"), name))
    (bert / "model.safetensors").unlink()
    assert "shards are .safetensors files in the same directory" in refusal(bert)


@pytest.mark.parametrize("where", [{}, [], None, {"a": 3}, "model.safetensors"])
def test_an_index_without_a_map(bert: Path, where: Any) -> None:
    (bert / "model.safetensors").unlink()
    write_index(bert, where)
    assert "has no weight_map" in refusal(bert)


def test_an_index_does_not_name_pickles(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    write_index(bert, {"a": "pytorch_model.bin"})
    assert "shards are .safetensors files" in refusal(bert, allow_pickle=True)


def broken_header(content: bytes) -> bytes:
    return (2**40).to_bytes(8, "little") + content[8:]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:0],
        lambda content: content[:5],
        lambda content: content[:300],
        lambda content: content[:-1],
        lambda content: content + b"x",
        broken_header,
        lambda content: content[:8] + b"[" + content[9:],
        lambda content: content.replace(b'"F32"', b'"F99"', 1),
        lambda content: content.replace(b'"data_offsets":[', b'"data_offsets":[9', 1),
        lambda content: content[::-1],
    ],
)
def test_broken_safetensors(bert: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = bert / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    assert "model.safetensors is not a whole safetensors file" in refusal(bert)


def test_a_pointer_of_git_lfs(bert: Path) -> None:
    (bert / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in refusal(bert)


def test_a_file_without_tensors(bert: Path) -> None:
    save_file({}, bert / "model.safetensors")
    assert "holds no tensors" in refusal(bert)


def test_a_pickle_needs_permission(bert: Path) -> None:
    before = read(bert)
    tensors = load_file(bert / "model.safetensors")
    (bert / "model.safetensors").unlink()
    # transposed views and shared memory, as state dicts may have
    tensors["embeddings.position_embeddings.weight"] = tensors["pooler.dense.bias"].expand(33, 20)  # not read
    name = "encoder.layer.0.intermediate.dense.weight"
    tensors[name] = tensors[name].T.contiguous().T
    for zipped in (True, False):
        torch.save(tensors, bert / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        assert "--allow-pickle" in refusal(bert)
        assert same(before, read(bert, allow_pickle=True))


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_pickle_is_never_executed(bert: Path, tmp_path: Path) -> None:
    (bert / "model.safetensors").unlink()
    mark = tmp_path / "executed"
    torch.save({"weight": Bomb(mark)}, bert / "pytorch_model.bin")
    assert "pytorch_model.bin cannot be read with weights only" in refusal(bert, allow_pickle=True)
    (bert / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(mark)))
    assert "pytorch_model.bin cannot be read with weights only" in refusal(bert, allow_pickle=True)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", bytes(range(256))])
def test_broken_pickles(bert: Path, content: bytes) -> None:
    (bert / "model.safetensors").unlink()
    (bert / "pytorch_model.bin").write_bytes(content)
    assert "pytorch_model.bin cannot be read" in refusal(bert, allow_pickle=True)


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"state_dict": {"a": torch.zeros(2)}}, {3: torch.zeros(2)}])
def test_pickles_that_are_no_state_dict(bert: Path, content: Any) -> None:
    (bert / "model.safetensors").unlink()
    torch.save(content, bert / "pytorch_model.bin")
    assert "not a table of dense tensors by name" in refusal(bert, allow_pickle=True)
