"""`posexport.base.registry`: objects of posexport and of installed packages by name, loaded when they are asked for."""

import sys
from pathlib import Path

import pytest

from posexport.base import registry
from posexport.base.registry import Registry
from posexport.base.targets.providers import PROVIDERS
from posexport.base.targets.target import Target, target_names
from posexport.errors import PosexportError


def package(folder: Path, name: str, entry_points: str, kind: str = "words", **modules: str) -> None:
    """An installed package as pip leaves it: its modules and its metadata."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[posexport.{kind}]\n{entry_points}\n")
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    registry._entry_points.cache_clear()
    yield tmp_path
    registry._entry_points.cache_clear()


def test_posexport_s_objects_come_first_and_are_imported_when_asked_for() -> None:
    words: Registry[str] = Registry("words", str, {"a": "string:digits", "broken": "no_such_module:X"})
    words["b"] = "registered"
    assert (*words,) == ("a", "broken", "b") == words.names
    assert len(words) == 3
    assert "a" in words
    assert "c" not in words
    assert (words["a"], words["b"], words.get("c")) == ("0123456789", "registered", None)
    with pytest.raises(ModuleNotFoundError):
        words["broken"]
    del words["b"]
    assert (*words,) == ("a", "broken")


def test_a_package_adds_objects_and_replaces_none(installed: Path) -> None:
    package(installed, "more-words", "a = more_words:A\nc = more_words:C", more_words="A = 'theirs'\nC = 'c'\n")
    words: Registry[str] = Registry("words", str, {"a": "string:digits"})
    assert words.names == ("a", "c")
    assert words.packages == {"c": "more-words 1.0"}
    assert "c" not in words
    assert "more_words" not in sys.modules
    assert (words["a"], words["c"]) == ("0123456789", "c")
    assert (*words,) == ("a", "c")
    assert words.packages == {}


def test_a_module_may_register_its_object(installed: Path) -> None:
    words: Registry[str] = Registry("words", str)
    sys.modules["holds_words"] = type(sys)("holds_words")
    sys.modules["holds_words"].words = words  # type: ignore[attr-defined]
    package(installed, "registers", "d = registers", registers="import holds_words\nholds_words.words['d'] = 'D'\n")
    assert words["d"] == "D"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "raise OSError('no disk')",
            "the package bad-words 1.0 adds 'e' to posexport.words, but bad_words:E cannot be loaded: OSError: "
            "no disk; repair or uninstall it",
        ),
        (
            "E = 5",
            "the package bad-words 1.0 adds 'e' to posexport.words, but bad_words:E is no str and registers none "
            "called 'e'; repair or uninstall it",
        ),
    ],
)
def test_a_broken_package_is_named_in_one_sentence(code: str, sentence: str, installed: Path) -> None:
    package(installed, "bad-words", "e = bad_words:E", bad_words=code)
    words: Registry[str] = Registry("words", str, {"a": "string:digits"})
    assert words["a"] == "0123456789"
    with pytest.raises(PosexportError) as caught:
        words["e"]
    assert str(caught.value) == sentence


def test_two_packages_with_one_name_are_named_both(installed: Path) -> None:
    package(installed, "one", "f = one:F", one="F = '1'")
    package(installed, "two", "f = two:F", two="F = '2'")
    with pytest.raises(PosexportError, match=r"^one 1\.0 and two 1\.0 both add 'f' to posexport\.words; uninstall one"):
        Registry("words", str).get("f")


def test_a_provider_of_a_package_is_a_target(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROVIDERS, "_loaded", dict(PROVIDERS._loaded))
    code = (
        "from posexport.base.targets.providers import Provider\n"
        "NPU = Provider(name='npu', label='the NPU', ort_name='NpuExecutionProvider', package='onnxruntime-npu')\n"
    )
    package(installed, "for-npus", "npu = for_npus:NPU", kind="providers", for_npus=code)
    assert target_names()[-1] == "npu"
    assert "for_npus" not in sys.modules
    provider = Target("npu", 23).provider
    assert provider is not None
    assert provider.ort_name == "NpuExecutionProvider"
    with pytest.raises(PosexportError, match=r"unknown target 'gpu'; known: portable, cpu, cuda, openvino, npu$"):
        Target("gpu")
