"""What pip installs: the extras, the sentence that names a missing one, the wheel and the sdist."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import setuptools
from click.testing import CliRunner

import posexport
from ci.artefacts import contents
from posexport.base.system import extras
from posexport.cli import group, main
from posexport.errors import PosexportError

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
BASE: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def names(requirements: Sequence[str]) -> set[str]:
    """Distributions that ``requirements`` name; extras of posexport itself are followed."""
    result: set[str] = set()
    for requirement in requirements:
        name, inner = re.fullmatch(
            r"([\w-]+)(?:\[([\w,-]+)\])?(?:(?:>=|<)[\d.]+)?(?:; python.*)?", requirement
        ).groups()  # type: ignore[union-attr]
        if name == "posexport":
            result |= {found for extra in inner.split(",") for found in names(EXTRAS[extra])}
        else:
            result.add(name)
    return result


def test_the_base_brings_neither_pytorch_nor_an_onnx_runtime() -> None:
    assert not names(BASE) & {"torch", "onnxscript", *extras.RUNTIMES}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_at_most_one_onnx_runtime(extra: str) -> None:
    runtimes = names(EXTRAS[extra]) & set(extras.RUNTIMES)
    assert len(runtimes) == (extra in ("all", "dev", "onnxruntime", "onnxruntime-gpu", "openvino", "webgpu"))


def test_a_library_is_in_the_extra_that_messages_name() -> None:
    modules = {
        "onnx_ir": "onnx-ir",
        "onnx_shape_inference": "onnx-shape-inference",
        "PIL": "pillow",
        "chronos": "chronos-forecasting",
        "open_clip": "open_clip_torch",
    }
    for module, (_, extra) in extras.LIBRARIES.items():
        assert modules.get(module, module) in names(EXTRAS[extra]), module


def test_dev_is_installed_at_its_pins() -> None:
    """ci/constraints.txt pins all that ci/setup installs by name."""
    lines = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    wanted = names([*BASE, *EXTRAS["dev"]])
    assert wanted <= set(pins), "pin it in ci/constraints.txt"


def test_an_older_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"posexport needs Python 3\.11 or newer, this is"):
        settings_of_setup(monkeypatch, ROOT)


def test_recorded_pythons_are_claimed_and_passed() -> None:
    """What ci/test --python wrote."""
    records = json.loads((ROOT / "ci" / "results" / "pythons.json").read_text(encoding="utf-8"))
    claimed = {each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"] if "Python :: 3." in each}
    assert records.keys() <= claimed
    assert not [name for record in records.values() for name in record["failed"]]


@pytest.mark.parametrize("which", ["lowest", "torch", "newest"])
def test_bounds_are_pins_of_an_environment(which: str) -> None:
    """What ci/lowest/run installs, and what it recorded."""
    line = [sys.executable, "ci/lowest/requirements.py", which]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    pins = dict(each.partition("==")[::2] for each in done.stdout.split())
    assert pins.keys() == names([*BASE, "posexport[onnxruntime,export,hub,plots]"]) | {"pytest", "hypothesis"}
    assert (pins["numpy"], pins["torch"]) == {
        "lowest": ("1.26", "2.13.0"),
        "torch": ("1.26", "2.11"),
        "newest": ("", ""),
    }[which]
    records = json.loads((ROOT / "ci" / "results" / "versions.json").read_text(encoding="utf-8"))
    record = records.get(which, {"failed": []})
    assert record["failed"] == []
    assert all(record[name].startswith(pin) for name, pin in pins.items() if name in record)


def settings_of_setup(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """What setup.py says in ``folder``."""
    said: list[dict[str, Any]] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(setuptools, "setup", lambda **settings: said.append(settings))
    runpy.run_path(str(ROOT / "setup.py"))
    return said[0]


def test_every_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [ROOT / "posexport", *(ROOT / "posexport").rglob("*"), ROOT / "posexport" / "models"]
    wanted = {".".join(f.relative_to(ROOT).parts) for f in folders if (f / "__init__.py").is_file()}
    settings = settings_of_setup(monkeypatch, ROOT)
    assert (set(settings["packages"]), settings["package_dir"]) == (wanted, {})
    assert {"posexport", "posexport.models", "posexport.testing", "posexport.encodings.rope"} <= wanted


def test_models_are_found_where_a_checkout_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and zip downloads have a text file in place of a link; ci/release compares the wheels."""
    (tmp_path / "posexport").mkdir()
    (tmp_path / "posexport" / "__init__.py").touch()
    (tmp_path / "posexport" / "models").write_text(os.readlink(ROOT / "posexport" / "models"))
    settings = settings_of_setup(monkeypatch, tmp_path)
    assert settings["packages"] == ["posexport", "posexport.models"]
    assert settings["package_dir"] == {"posexport.models": "models"}


#: names that NumPy 2 added; pyproject.toml allows 1.26
SINCE_NUMPY_2 = (
    "a(cos|sin|tan)h?|atan2|astype|bitwise_(count|invert|left_shift|right_shift)|bool|concat|"
    "cumulative_(prod|sum)|isdtype|u?long|matrix_transpose|matvec|permute_dims|pow|strings|trapezoid|"
    "unique_(all|counts|inverse|values)|unstack|vecdot|vecmat"
)


def test_names_of_numpy_are_those_of_its_lowest_version() -> None:
    """A type annotation alone made the import fail; ci/lowest/run tries it."""
    newer = re.compile(rf"\bnp\.({SINCE_NUMPY_2})\b")
    assert newer.search("NDArray[np.bool]")
    assert not newer.search("np.bool_, np.longlong, np.arccosh, np.power")
    sources = [*(ROOT / "posexport").rglob("*.py"), *(ROOT / "models").glob("*.py")]
    assert not [path for path in sources if newer.search(path.read_text(encoding="utf-8"))]


def test_faults_of_a_wheel_are_found(tmp_path: Path) -> None:
    wheel, headers = tmp_path / "x.whl", "Requires-Python: >=3.11\nLicense-Expression: Apache-2.0\n"
    files = {
        **dict.fromkeys([*contents.NEEDED, "LICENSE", "a.jinja", "posexport/testing/smoke/embedder/model.onnx"], b""),
        "x.dist-info/METADATA": headers.encode(),
    }

    def faults(**changed: bytes) -> list[str]:
        with zipfile.ZipFile(wheel, "w") as written:
            for name, data in {**files, **changed}.items():
                written.writestr(name, data)
        return list(contents.faults(wheel, ">=3.11"))

    assert faults() == []
    assert faults(**{"tests/x.py": b""}) == ["tests/x.py does not belong there"]
    assert faults(**{"x.json": b'"/home/me/x"'}) == ["x.json holds the path /home/me"]
    large = bytes(contents.LARGEST_DATA)
    assert faults(**{"x.bin": large + b"1"}) == [f"what is no code has {len(large) + 1} bytes, more than {len(large)}"]
    code = bytes(contents.LARGEST[".whl"])
    assert re.match(rf"it has \d+ bytes, more than {len(code)}", *faults(**{"posexport/x.py": code}))
    assert faults(**{"x.dist-info/METADATA": b"Requires-Python: >=3\n"})[0] == "its Requires-Python is >=3, not >=3.11"
    files.pop("posexport/py.typed")
    assert faults() == ["posexport/py.typed is missing"]


def forget(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if ``modules`` were not installed."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("missing", "call", "sentence"),
    [
        (
            ["torch", "onnxscript", "onnx_ir", "onnxruntime"],
            lambda path: posexport.convert("encoder-t5", path),
            "posexport.convert needs PyTorch, onnxscript, onnx-ir and ONNX Runtime, which are not installed: "
            "pip install 'posexport[export,onnxruntime]' (for CUDA onnxruntime-gpu in place of onnxruntime)",
        ),
        (
            ["torch"],
            lambda path: posexport.verify(path, "encoder-t5"),
            "posexport.verify needs PyTorch, which is not installed: pip install 'posexport[export]'",
        ),
        (
            ["onnxruntime"],
            lambda path: posexport.load(path),
            "posexport.load needs ONNX Runtime, which is not installed: pip install 'posexport[onnxruntime]' (for CUDA "
            "onnxruntime-gpu in place of onnxruntime)",
        ),
    ],
    ids=["convert", "verify", "load"],
)
def test_a_missing_library_is_a_sentence_with_its_extra(
    missing: list[str], call: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch, *missing)
    with pytest.raises(PosexportError, match=f"^{re.escape(sentence)}$"):
        call(tmp_path / "b")


def test_any_command_that_lacks_a_library_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that ask for nothing before they import it, too."""

    def invoke(*_: Any, **__: Any) -> None:
        import torch  # noqa: F401

    forget(monkeypatch, "torch")
    monkeypatch.setattr(sys, "argv", ["posexport", "plot", "rope", "--check"])
    monkeypatch.setattr(group, "invoke", invoke)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    sentence = "posexport plot needs PyTorch, which is not installed: pip install 'posexport[export]'"
    assert capsys.readouterr().err == f"posexport: {sentence}\n"


def test_other_missing_modules_are_defects() -> None:
    assert extras.explain_missing(ModuleNotFoundError("x", name="posexport.nothing"), "x") is None
    assert extras.explain_missing(ModuleNotFoundError("x", name="torch"), "x") is None  # it is installed


def test_a_folder_that_pip_left_behind_is_not_an_installed_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib" / "capi").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(PosexportError, match="a picture needs matplotlib, which is not installed"):
        extras.require("a picture", "matplotlib")


def test_two_onnx_runtimes_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "installed_runtimes", lambda: ["onnxruntime", "onnxruntime-gpu"])
    done = CliRunner().invoke(group, ["list", "providers"])
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "warning: onnxruntime and onnxruntime-gpu are installed together and overwrite each other's files: "
        "pip uninstall onnxruntime onnxruntime-gpu, then install one of them\n"
    )


def test_the_one_onnx_runtime_here_is_no_conflict() -> None:
    assert extras.installed_runtimes() in (["onnxruntime"], ["onnxruntime-gpu"])
    assert extras.runtime_conflict() is None


# From here on: what pip makes of it, in fresh environments. `pip` brings no CUDA: PyTorch is the pinned CPU build.


def command(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs outside the repository, whose packages must not be seen."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    return subprocess.run(list(map(str, args)), cwd=cwd, env=env, capture_output=True, text=True, check=False)


def environment(folder: Path, *requirements: str | Path, base: str | Path = sys.executable) -> Path:
    """The python of a new environment with ``requirements``, made by the python ``base``."""
    python = folder / "environment" / "bin" / "python"
    assert command(base, "-m", "venv", folder / "environment").returncode == 0
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        ROOT / "ci" / "constraints.txt",
    ]
    for requirement in requirements:
        done = command(*pip, requirement, cwd=folder)
        assert done.returncode == 0, done.stderr
    return python


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of a clean copy of the repository."""
    folder = tmp_path_factory.mktemp("built")
    checkout, dist = folder / "checkout", folder / "dist"
    listed = command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if name.split("/")[0] in ("posexport", "models", "tests") or "/" not in name:
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (checkout / name).symlink_to(os.readlink(ROOT / name))
            elif (ROOT / name).is_file():
                (checkout / name).write_bytes((ROOT / name).read_bytes())
    # each from the checkout: `build` alone would make the wheel from the sdist
    done = command(sys.executable, "-m", "build", "--sdist", "--wheel", "--outdir", dist, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundle") / "encoder"
    posexport.convert("encoder-t5", target, settings={"layers": 1, "hidden": 20, "heads": 5}, lengths=[1, 17])
    return target


def one(built: Path, suffix: str) -> Path:
    (path,) = built.glob(f"*{suffix}")
    return path


@pytest.mark.all
@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_a_distribution_holds_every_module_as_a_file_and_no_test(built: Path, suffix: str) -> None:
    path = one(built, suffix)
    if suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            files = {info.filename: info.file_size for info in wheel.infolist()}
    else:
        with tarfile.open(path) as sdist:
            assert all(member.isfile() or member.isdir() for member in sdist), "a link does not unpack on Windows"
            files = {m.name.partition("/")[2]: m.size for m in sdist if m.isfile()}
    modules = [*(ROOT / "posexport").rglob("*.py"), *(ROOT / "posexport" / "models").glob("*.py")]
    modules += [] if suffix == ".whl" else [ROOT / "setup.py"]
    wanted = {str(module.relative_to(ROOT)): module.stat().st_size for module in modules}
    assert {name: size for name, size in files.items() if name.endswith(".py")} == wanted
    assert "posexport/py.typed" in files
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "posexport").rglob("*.jinja")}
    assert len(templates) > 10
    assert templates <= set(files)
    assert any(name.endswith("LICENSE") for name in files)


RUNTIME = """
import importlib.util, sys
assert not [name for name in ("torch", "onnxscript", "matplotlib") if importlib.util.find_spec(name)]
import posexport
assert "site-packages" in posexport.__file__
session = posexport.load(sys.argv[1])
print(session.run({"input_ids": [[1, 2, 3]]})["last_hidden_state"].shape)
assert posexport.verify(sys.argv[1]).passed
"""


@pytest.mark.all
@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_a_bundle_runs_where_there_is_no_pytorch(built: Path, bundle: Path, suffix: str, tmp_path: Path) -> None:
    python = environment(tmp_path, f"{one(built, suffix)}[onnxruntime]", "pytest")
    done = command(python, "-c", RUNTIME, bundle, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "(1, 3, 20)\n"), done.stderr
    (tmp_path / "ids.json").write_text('{"input_ids": [[1, 2, 3]]}')
    runs = {
        ("run", str(bundle), "--inputs", "ids.json"): 0,
        ("verify", str(bundle), "--junit", "parity.xml"): 0,
        ("list", "providers"): 0,
        ("--help",): 0,
        ("convert", "encoder-t5", "-o", "out"): 2,
        ("verify", str(bundle), "--against", "encoder-t5"): 2,
        ("plot", "rope", "--check"): 2,
    }
    for arguments, code in runs.items():
        done = command(python.parent / "posexport", *arguments, cwd=tmp_path)
        assert done.returncode == code, (arguments, done.stderr)
        assert code == 0 or "pip install 'posexport[export" in done.stderr, (arguments, done.stderr)
    done = command(python, "-m", "pytest", "-q", "--posexport-bundle", bundle, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1].startswith("1 passed")) == (0, True), done.stdout


@pytest.mark.all
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_bundle_runs_on_other_pythons(built: Path, bundle: Path, version: str, tmp_path: Path) -> None:
    """The runtime part; ci/test --python runs the short tests on these."""
    installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    candidates = [shutil.which(f"python{version}"), *sorted(installed)]
    works = [path for path in candidates if path and command(path, "--version").returncode == 0]
    if not works:
        pytest.skip(f"no python{version} on this machine")
    python = environment(tmp_path, f"{one(built, '.whl')}[onnxruntime]", "pytest", base=works[0])
    done = command(python, "-c", RUNTIME, bundle, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "(1, 3, 20)\n"), done.stderr
    done = command(python, "-m", "pytest", "-q", "--posexport-bundle", bundle, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def converting(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with the extra export. PyTorch first and alone, as ci/setup does."""
    return environment(tmp_path_factory.mktemp("export"), "torch", f"{one(built, '.whl')}[export,onnxruntime]")


@pytest.mark.all
@pytest.mark.parametrize("suffix", [".whl", ".tar.gz"])
def test_a_model_converts_where_the_extra_is(built: Path, suffix: str, converting: Path, tmp_path: Path) -> None:
    pip = [converting, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = command(*pip, "--force-reinstall", one(built, suffix), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    program = converting.parent / "posexport"
    sizes = [word for pair in ("layers=1", "hidden=20", "heads=5") for word in ("--set", pair)]
    done = command(program, "convert", "decoder-rope", *sizes, "--length", "5", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("checked at 5 tokens, not proven")
    done = command(program, "plot", "rope", "-o", "rope.png", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'posexport[plots]'" in done.stderr
