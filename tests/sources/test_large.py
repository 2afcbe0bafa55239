"""Large models: mapped weights, copies that share them, weights in a file of their own. The thresholds are lowered."""

import shutil
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import posexport
from posexport.api import verify
from posexport.conversion.convert import convert
from posexport.conversion.export.build import build
from posexport.conversion.export.save import KEEP_INSIDE
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.proof.grid.inputs import Feeds, draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.references.precision_copy import PrecisionCopy, Reader, shareable
from posexport.sources import memory_mapped
from posexport.sources.builtin import builtin_source
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source
from tests.parity_models import source
from tests.small import in_short, recipe
from tests.tolerances import agree

pytestmark = pytest.mark.fresh
GOLDEN = Path(__file__).parents[1] / "golden"
BUILTIN = [
    "decoder-absolute",
    "decoder-alibi",
    "decoder-cope",
    "decoder-fire",
    "decoder-rope",
    "decoder-relative-key",
    "decoder-t5",
    "decoder-transformer-xl",
    "encoder-deberta",
    "encoder-learned",
    "encoder-relative-key-query",
    "encoder-shaw-kv",
    "encoder-tupe",
]
#: the same numbers; turned and split tensors; a tied head; a factor; norms with a gain beside them
CHECKPOINTS = [
    "albert-relative_key",
    "bert-absolute",
    "bloom-forcausallm",
    "gpt2-lmheadmodel",
    "llama-forcausallm",
    "roberta-absolute",
    "wavlm-group",
]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model counts as large."""
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 64)
    monkeypatch.setattr("posexport.conversion.export.save.EXTERNAL_ABOVE", 0)


def builtin(name: str) -> Source:
    return source(name, "layers=2")


def feeds(of: Source) -> Feeds:
    return draw(GridPoint(batch=3, length=7, padding=of.limits.ragged or "none"), of.inputs)


def pages(parameter: nn.Parameter) -> bool:
    return any(name.startswith("_posexport") for name in vars(parameter))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("whole_up_to", [0, 1 << 27])
def test_a_sharing_copy_answers_as_a_whole_one_does(
    name: str, dtype: torch.dtype, whole_up_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posexport.proof.references.precision_copy._PIECE", 512)
    monkeypatch.setattr("posexport.proof.references.precision_copy._WHOLE", whole_up_to)
    made = builtin(name)
    whole = PrecisionCopy(made.module, dtype, outputs=len(made.outputs))
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    shared = PrecisionCopy(made.module, dtype, outputs=len(made.outputs))
    assert whole.reader is None
    assert shared.reader is not None
    for got, wanted in zip(shared(feeds(made)), whole(feeds(made)), strict=True):
        # not to the bit: matrix products may round otherwise for memory that is aligned otherwise, or in pieces
        agree(got, wanted, "attention" if dtype != torch.float16 else "model in half precision", dtype)
    assert all(parameter.dtype == torch.float32 for parameter in made.module.parameters())


def test_a_sharing_copy_holds_a_few_cast_weights_at_a_time(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del large
    made = source("decoder-rope", "layers=6")
    alive: dict[int, int] = {}
    most = 0
    read = Reader.read

    def counting(self: Reader, parameter: nn.Parameter) -> nn.Parameter:
        nonlocal most
        cast = read(self, parameter)
        alive[id(cast)] = cast.numel() * cast.element_size()
        weakref.finalize(cast, alive.pop, id(cast))
        most = max(most, sum(alive.values()))
        return cast

    monkeypatch.setattr(Reader, "read", counting)
    PrecisionCopy(made.module, torch.float64, outputs=len(made.outputs))(feeds(made))
    sizes = [8 * parameter.numel() for parameter in made.module.parameters()]
    assert max(sizes) <= most <= 2 * max(sizes) < sum(sizes) / 2


class Counting(nn.Module):
    """Answers with its weights and how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(600.0))
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("third", torch.ones(1) / 3)

    def forward(self) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return self.weight + self.calls, self.third * self.third


def test_what_keeps_state_is_copied(large: None) -> None:
    del large
    module = Counting()
    kept = PrecisionCopy(module, torch.float64, outputs=2)
    assert [kept({})[0][0] for _ in range(2)] == [1.0, 2.0]
    fresh = PrecisionCopy(module, torch.float64, outputs=2, fresh=True)
    assert [fresh({})[0][0] for _ in range(2)] == [1.0, 1.0]
    assert module.calls.item() == 0
    assert fresh({})[1].dtype == np.float64, "buffers are in the copy's precision"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_weights_that_stand_in_a_list_too_are_copied(dtype: torch.dtype, large: None) -> None:
    del large

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 5)

        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (self.gru(x)[0],)

    module = Recurrent().eval()
    assert not shareable(module)
    x = np.ones((3, 2, 4), np.float32)
    (got,) = PrecisionCopy(module, dtype, outputs=1)({"x": x})
    with torch.inference_mode():
        wanted = module.to(dtype)(torch.from_numpy(x).to(dtype))[0].numpy()
    np.testing.assert_array_equal(got, wanted)


def stored_as(name: str, dtype: torch.dtype, folder: Path) -> Path:
    """A golden checkpoint, its weights in this format, and where numbers of this format can begin."""
    shutil.copytree(GOLDEN / name, folder)
    file = folder / "model.safetensors"
    tensors = {key: value.to(dtype) if value.is_floating_point() else value for key, value in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_mapped_weights_are_those_that_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(stored_as(name, torch.float32, tmp_path / "checkpoint"))
    read = load_source(path, LoadOptions())
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 64)
    found = load_source(path, LoadOptions())
    wanted = dict(read.module.named_parameters())
    got = dict(found.module.named_parameters())
    assert list(got) == list(wanted)
    for key, parameter in got.items():
        assert torch.equal(parameter, wanted[key])
        assert pages(parameter) == (parameter.numel() >= 16)
    assert found.remarks == read.remarks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_formats_go_through_a_temporary_file(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored_as("llama-forcausallm", dtype, tmp_path / "checkpoint")
    wanted = load_source(str(path), LoadOptions()).module.state_dict()
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "SHARED", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 64)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for room in (True, False):
        if not room:
            monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        module = load_source(str(path), LoadOptions()).module
        assert all(pages(parameter) == (room and parameter.numel() >= 16) for parameter in module.parameters())
        for key, value in module.state_dict().items():
            assert torch.equal(value, wanted[key])
    assert not list(scratch.iterdir()), "the file has no name"


def test_weights_that_fit_nowhere_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"disk": 0, "memory": 0}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free["disk"]))
    monkeypatch.setattr(memory_mapped, "available", lambda: free["memory"])
    size = 1 << 34
    for free["disk"], free["memory"], on_disk in ((4, 0, True), (2, 3, False), (1.25, 1.9, True), (1, 1.5, False)):
        free = {name: int(value * size) for name, value in free.items()}
        with memory_mapped.Scratch(size) as scratch:
            assert (scratch._file is not None) == on_disk
    free = {"disk": size, "memory": size}
    with pytest.raises(PosexportError, match=r"take 16.0 GiB in float32; there are 16.0 GiB .* set TMPDIR"):
        memory_mapped.Scratch(size)


def resident(file: Path) -> int:
    """Bytes of ``file`` that this process has mapped and in memory."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(file))
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_weights_take_no_memory_and_are_there_when_read(tmp_path: Path) -> None:
    numbers = np.arange(1 << 20, dtype=np.float32)
    file = tmp_path / "weights"
    file.write_bytes(b"head" + numbers.tobytes())
    with file.open("rb") as opened:
        parameter = memory_mapped.view(memory_mapped.open_map(opened), 4, [1024, 1024])
    assert parameter is not None
    for _ in range(2):
        np.testing.assert_array_equal(parameter.numpy().ravel(), numbers)
        assert resident(file) > 4_000_000
        memory_mapped.release([parameter])
        assert resident(file) < 100_000
    with torch.no_grad():
        parameter.mul_(2)
    memory_mapped.release([parameter])
    np.testing.assert_array_equal(parameter.numpy().ravel(), 2 * numbers)
    assert file.read_bytes()[4:] == numbers.tobytes(), "the file stays as it is"


def test_moved_parameters_are_the_same_objects_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers has loaded goes to the disk too; a head is tied to its table, and a list has it as well."""
    monkeypatch.setattr(memory_mapped, "LARGE", 0)
    monkeypatch.setattr(memory_mapped, "LEAST", 1)
    module = nn.Sequential(nn.Embedding(1031, 17), nn.Linear(17, 1031, bias=False), nn.Linear(5, 3))
    module[1].weight = module[0].weight
    listed, before = module[0].weight, {name: x.detach().clone() for name, x in module.named_parameters()}
    memory_mapped.move(module.parameters())
    assert module[0].weight is module[1].weight is listed
    memory_mapped.release(module.parameters())
    assert all(torch.equal(x, before[name]) for name, x in module.named_parameters())
    with torch.no_grad():
        listed += 1
    memory_mapped.release(module.parameters())  # the pages of one that was changed are kept
    assert torch.equal(listed, before["0.weight"] + 1)


def test_where_no_float32_can_begin_nothing_is_mapped(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(64))
    with file.open("rb") as opened:
        found = memory_mapped.open_map(opened)
    assert memory_mapped.view(found, 2, [3]) is None
    assert memory_mapped.view(found, 0, [0, 3]) is None


@pytest.mark.all
@pytest.mark.parametrize(
    "dtype", in_short([torch.float32, torch.bfloat16], lambda dtype: dtype == torch.bfloat16), ids=str
)
def test_a_bundle_with_weights_outside_is_proven_and_works_elsewhere(
    dtype: torch.dtype, tmp_path: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del large
    checkpoint = stored_as("gpt2-lmheadmodel", dtype, tmp_path / "checkpoint")
    made = convert(str(checkpoint), tmp_path / "bundle", ConvertOptions(lengths=(1, 5), threads=1))
    assert made.good
    assert made.manifest is not None
    assert "model.onnx.data" in made.manifest.files
    elsewhere = tmp_path / "a" / "b"
    elsewhere.parent.mkdir()
    (tmp_path / "bundle").rename(elsewhere)
    monkeypatch.chdir(tmp_path)
    assert verify(elsewhere, threads=1).passed
    assert verify(elsewhere, against=str(checkpoint), lengths=(3,), threads=1).passed

    session = posexport.load(elsewhere, threads=1)
    shutil.move(checkpoint, tmp_path / "gone")
    assert session.run({"input_ids": [[3, 4, 5]]})["logits"].shape[:2] == (1, 3)
    tokens: Any = session.generate([[3, 4, 5], [6]], max_new_tokens=4, eos_token_id=[])
    assert [len(one.tokens) for one in tokens.completions] == [4, 4]


@pytest.mark.all
def test_a_weight_that_is_used_twice_is_outside_once(tmp_path: Path, large: None) -> None:
    del large
    # the exporter turns what is small beforehand, and then has it twice
    sizes_of = ("layers=1", "hidden=20", "heads=5", "vocab=501")
    made = builtin_source("decoder-rope", task=None, settings_given=sizes_of)
    build(made, tmp_path / "m.onnx", recipe())
    sizes = [4 * parameter.numel() for parameter in made.module.parameters()]
    assert sizes.count(501 * 20 * 4) == 1, "the table of tokens, which is the head's too"
    assert (tmp_path / "m.onnx.data").stat().st_size == sum(size for size in sizes if size > KEEP_INSIDE)
    inside = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    assert all(len(tensor.raw_data) <= KEEP_INSIDE for tensor in inside)
