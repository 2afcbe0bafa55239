"""Classes of transformers with lazy parameters have the numbers that they have when they are read whole."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from posexport.checkpoints.opened import open_checkpoint
from posexport.errors import PosexportError
from posexport.sources import lazy_parameters, memory_mapped

pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

import transformers

from ci.through import tiny
from posexport.through import lazy_load


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 64)


def made(folder: Path, kind: str) -> Path:
    """A checkpoint of a type in 16 bits."""
    tiny.make(folder, tiny.table()[kind])
    for file in folder.glob("*.safetensors"):
        tensors = {name: x.bfloat16() if x.is_floating_point() else x for name, x in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    return folder


def both(folder: Path, kind: str) -> tuple[nn.Module, nn.Module | None]:
    """The model as transformers loads it, and with lazy parameters where it can have them."""
    cls = getattr(transformers, tiny.table()[kind]["class"])
    settings = transformers.AutoConfig.from_pretrained(folder)
    load = partial(cls.from_pretrained, config=settings, dtype=torch.float32, output_loading_info=True)
    lazy = lazy_load.load(open_checkpoint(folder), lambda state: load(None, state_dict=state))
    return load(folder)[0], None if lazy is None else lazy[0]


def assert_equal(read: nn.Module, lazy: nn.Module) -> int:
    """That both have the same names, ties and numbers; how many parameters are lazy."""
    expected, parameters = (dict(model.named_parameters(remove_duplicate=False)) for model in (read, lazy))
    assert list(parameters) == list(expected)
    for name, parameter in parameters.items():
        assert torch.equal(lazy_parameters.values(parameter), expected[name]), name
    names = {id(p): [name for name in parameters if parameters[name] is p] for p in parameters.values()}
    tied = {id(p): [name for name in expected if expected[name] is p] for p in expected.values()}
    assert sorted(names.values()) == sorted(tied.values())
    for (name, buffer), other in zip(lazy.named_buffers(), read.buffers(), strict=True):
        assert torch.equal(buffer, other), name
    return sum(map(lazy_parameters.is_lazy, lazy.parameters()))


@pytest.mark.all(but=("[lfm2]", "[granitemoehybrid]", "[qwen2_5_vl]", "[bamba]"))
@pytest.mark.parametrize("kind", tiny.table())
def test_lazy_parameters_are_those_of_the_checkpoint(tmp_path: Path, kind: str) -> None:
    if tiny.table()[kind].keys() & {"through", "live"} or kind == "timm_wrapper":
        pytest.skip("made by other tests")
    try:
        read, lazy = both(made(tmp_path, kind), kind)
    except PosexportError as err:
        pytest.skip(str(err))
    assert lazy is None or assert_equal(read, lazy)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_calls_see_values_inside_a_block_alone(tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory or in a file; what is read for good inside the block stays."""
    monkeypatch.setattr(lazy_parameters, "_SHARE", share)
    read, lazy = both(made(tmp_path, "lfm2"), "lfm2")
    assert lazy is not None
    ids, unread = torch.arange(6)[None], [p for p in lazy.parameters() if lazy_parameters.is_lazy(p)]
    with torch.no_grad():
        expected = read(input_ids=ids).logits
        with lazy_parameters.with_values(lazy.parameters()):
            assert torch.equal(lazy(input_ids=ids).logits, expected)
            lazy_parameters.materialize(unread[:1])
        assert not lazy(input_ids=ids).logits.any()
    assert unread[0].any()
    assert not any(parameter.any() for parameter in unread[1:])
    assert lazy_parameters.is_lazy(unread[1])
    assert assert_equal(read, lazy) == len(unread) - 1
    lazy_parameters.materialize(unread)
    with torch.no_grad():
        assert torch.equal(lazy(input_ids=ids).logits, expected)


def test_memory_that_something_reads_is_not_given_again(tmp_path: Path) -> None:
    _, lazy = both(made(tmp_path, "lfm2"), "lfm2")
    assert lazy is not None
    unread = [p for p in lazy.parameters() if lazy_parameters.is_lazy(p)]
    tensors = [lazy_parameters.values(p) for p in unread]
    arrays = [lazy_parameters.values(p).flatten().numpy()[1:] for p in unread]
    assert all(torch.equal(x, lazy_parameters.values(p)) for x, p in zip(tensors, unread, strict=True))
    again = (lazy_parameters.values(p).flatten().numpy()[1:] for p in unread)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, again, strict=True))
    few = lazy_parameters.first_values(unread[0], 3)
    assert torch.equal(few, tensors[0][:3])


@pytest.mark.parametrize("kind", ["mixtral", "youtu"])
def test_weights_are_read_that_a_class_stacks_or_changes(tmp_path: Path, kind: str) -> None:
    assert both(made(tmp_path, kind), kind)[1] is None


def _head(folder: Path, factor: float) -> None:
    """Add the tied head of a decoder to its file, times a factor."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": factor * tensors["model.embed_tokens.weight"]}, file, {"format": "pt"})


def test_a_tied_head_may_be_in_the_file_twice(tmp_path: Path) -> None:
    _head(made(tmp_path, "lfm2"), 1.0)
    read, lazy = both(tmp_path, "lfm2")
    assert lazy is not None
    assert assert_equal(read, lazy)


def test_a_head_that_differs_from_what_it_is_tied_to_is_read(tmp_path: Path) -> None:
    _head(made(tmp_path, "lfm2"), 2.0)
    assert both(tmp_path, "lfm2")[1] is None


def test_a_pickle_is_read_by_transformers(tmp_path: Path) -> None:
    folder = made(tmp_path, "lfm2")
    (file,) = folder.glob("*.safetensors")
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    checkpoint = open_checkpoint(folder, allow_pickle=True)
    assert lazy_load.load(checkpoint, lambda _: pytest.fail("it is not mapped")) is None
