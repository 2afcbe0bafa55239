"""`posexport env`: what a bug report needs, and nothing that tells who filed it."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from posexport.base.system import machine
from posexport.base.system.extras import LIBRARIES
from posexport.base.targets.providers import PROVIDERS
from posexport.catalogue import environment as module
from posexport.catalogue.environment import BASE, Environment, environment
from posexport.cli import group


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"name": "cpu", "what": "loads"}, {"name": "cuda", "what": "/home/me/lib/libcublas.so.13 is missing"}]
    monkeypatch.setattr(module, "catalogue", lambda _: entries)


def test_the_command_prints_one_fact_a_line_and_the_same_as_json() -> None:
    text = CliRunner().invoke(group, ["env"])
    assert text.exit_code == 0, text.output
    document = CliRunner().invoke(group, ["env", "--json"])
    assert document.exit_code == 0, document.output
    found = json.loads(document.stdout)
    assert set(found) == set(Environment.__struct_fields__)
    assert list(found["packages"]) == list(BASE)
    assert "not installed" not in found["packages"].values()
    assert set(found["extras"]) == {extra for _, extra in LIBRARIES.values()}
    assert found["providers"].keys() == set(PROVIDERS)
    assert found["providers"]["cpu"] == "loads"
    for value in (found["posexport"], found["processor"], *found["providers"].values()):
        assert value in text.stdout


@pytest.mark.usefixtures("providers")
def test_no_folder_and_no_other_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/home/me/cuda-13")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = environment()
    assert found.providers["cuda"] == "libcublas.so.13 is missing"
    assert (found.variables["CUDA_HOME"], found.variables["OMP_NUM_THREADS"]) == ("cuda-13", "3")
    text = found.to_text()
    assert "/home" not in text
    assert "secret" not in text


@pytest.mark.usefixtures("providers")
def test_a_missing_library_is_told_and_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert environment().extras["plots"] == ["matplotlib: not installed"]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("model name\t: Xeon\nflags\t\t: fpu smep avx2 amx_tile\n", "Xeon", ["amx_tile", "avx2"]),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm sve\n", None, ["asimd", "i8mm", "sve"]),
        (None, None, None),
    ],
    ids=["x64", "arm", "no /proc"],
)
def test_a_processor_is_described_by_what_the_system_lists(
    text: str | None, name: str | None, expected: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert machine.instructions() == expected
    assert machine.processor() == name or (name is None and machine.processor())


@pytest.mark.parametrize(("limit", "expected"), [("1073741824\n", 2**30), ("max\n", None), (None, None)])
def test_the_limit_of_a_container(
    limit: str | None, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "GROUP", tmp_path)
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("1000\n")
    assert machine.memory_limit() == expected
    assert 0 < machine.available() <= (expected or sys.maxsize)
