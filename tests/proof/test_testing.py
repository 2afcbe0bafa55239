"""Parity in other people's tests: `assert_parity`, the pytest plugin, and JUnit XML."""

import doctest
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import numpy as np
import onnx
import pytest
import tiny_bundle
import yaml
from click.testing import CliRunner

# The runs of pytest inside this process unload what they import: everything heavy is imported here.
import posexport.testing.parity
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.report.report import junit, junit_error
from posexport.proof.sample.writer import Header, SampleWriter
from posexport.run import providers
from posexport.run.bundle.manifest import SAMPLE
from posexport.run.bundle.write import seal, staged
from posexport.testing import assert_parity, plugin

pytest_plugins = ["pytester"]

MISSING = "CUDAExecutionProvider was asked for and did not load: the library libcudart.so.13 is missing"


def write(target: Path, factor: float = 1.0) -> Path:
    """The bundle of `tiny_bundle` with a stored sample; its table is ``factor`` times what the sample is made of."""
    points = [GridPoint(batch=2, length=length, padding="none") for length in (1, 5)]
    writer = SampleWriter()
    writer._chosen = points
    refusal = GridPoint(batch=1, length=tiny_bundle.LIMIT + 1, must_be_rejected=True)
    inputs, outputs = tiny_bundle.MANIFEST.inputs, tiny_bundle.MANIFEST.outputs
    writer.header = Header(
        precision="fp32",
        limit=tiny_bundle.LIMIT,
        inputs=inputs,
        outputs=outputs,
        points=[],
        refusals=[refusal],
        truths=[],
    )
    for point in points:
        feeds = draw(point, inputs)
        hidden = tiny_bundle.expected(*(feeds[spec.name] for spec in inputs))
        writer.add(point, feeds, [hidden, hidden.astype(np.float64).mean(1)], [None, None])
    with staged(target, force=False) as staging:
        onnx.save_model(tiny_bundle.tiny_model(tiny_bundle.TABLE * np.float32(factor)), staging / "model.onnx")
        writer.save(staging)
        seal(staging, tiny_bundle.MANIFEST)
    return target


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("good") / "right")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bad") / "wrong", 1.001)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Runs pytest in this process, with the plugin and without CUDA."""

    def check(provider: str) -> None:
        if provider == "cuda":
            raise PosexportError(MISSING)

    monkeypatch.setattr(providers, "check_loads", check)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins of this environment, which take time

    def call(*args: str | Path, test: str = "") -> pytest.RunResult:
        if test:
            pytester.makepyfile(test_it=test)
        # as the entry point, installed or not
        return pytester.runpytest_inprocess("-p", "no:posexport", "-p", "posexport.testing.plugin", *map(str, args))

    return call


@pytest.mark.all
def test_parity_is_asserted_against_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(posexport.testing.parity)
    assert (failed, tried) == (0, 4)


def test_a_source_is_named_as_in_verify(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    answer = posexport.verify(good)

    def verify(bundle: Path, against: str | None = None, **options: Any) -> posexport.Report:
        calls.append({"bundle": bundle, "against": against, **options})
        return answer

    monkeypatch.setattr("posexport.testing.parity.verify", verify)
    # what a caller of verify sees, a test need not; options are of one provider, and a test may ask several
    own = {"bundle", "against", "provider", "provider_options", "progress", "remark", "proof"}
    options = {name: object() for name in inspect.signature(posexport.api.verify).parameters if name not in own}
    reports = assert_parity("b", "encoder-t5", providers=["cpu", "cuda"], **options)  # type: ignore[arg-type]
    common = {"bundle": "b", "against": "encoder-t5", **options}
    assert calls == [{**common, "provider": "cpu"}, {**common, "provider": "cuda"}]
    assert reports == {"cpu": answer, "cuda": answer}


def test_missed_parity_is_an_assertion_error_with_the_table(bad: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_parity(str(bad))
    sentence, _, table = str(caught.value).partition("\n\n")
    assert "misses parity on cpu: last_hidden_state at length" in sentence
    assert "exceeds" in sentence
    assert "| FAIL" in table


def test_what_cannot_be_checked_is_no_assertion_error(good: Path, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match="no such bundle"):
        assert_parity(tmp_path / "none")
    with pytest.raises(PosexportError, match=r"providers must be a list such as \['cpu', 'cuda'\], got 'cpu'"):
        assert_parity(good, providers="cpu")


def test_a_bundle_s_sample_is_a_test(run: Callable[..., pytest.RunResult], good: Path, bad: Path) -> None:
    result = run("--posexport-bundle", good, "--posexport-bundle", bad)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*wrong misses parity on cpu: last_hidden_state at length*", "*| FAIL*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*posexport/testing/parity.py*")


def test_fixtures_are_the_bundles_and_their_sessions(
    run: Callable[..., pytest.RunResult], good: Path, bad: Path
) -> None:
    test = """
        import numpy as np

        def test_path(posexport_bundle):
            assert (posexport_bundle / "posexport.json").is_file()

        def test_session(posexport_session):
            assert posexport_session.run({"input_ids": [[1, 2, 3]]})["last_hidden_state"].shape == (1, 3, 3)
    """
    result = run("--posexport-bundle", good, "--posexport-bundle", bad, "-k", "test_path or test_session", test=test)
    result.assert_outcomes(passed=4, deselected=2)
    result = run("-rs", test=test)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*no bundle to test: run pytest with --posexport-bundle DIR*"])


MARKED = """
    import pytest

    @pytest.mark.posexport_provider("cuda")
    def test_marked():
        pass

    @pytest.mark.posexport_provider("cpu")
    def test_on_the_cpu():
        pass
"""


def test_a_provider_that_does_not_load_skips_with_the_reason(run: Callable[..., pytest.RunResult]) -> None:
    result = run("-rs", "--strict-markers", test=MARKED)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED*cuda does not load: {MISSING}"])


def test_a_required_provider_that_does_not_load_fails(run: Callable[..., pytest.RunResult], good: Path) -> None:
    result = run("--posexport-require", "cuda", "--posexport-bundle", good, test=MARKED)
    result.assert_outcomes(passed=2, errors=2)  # the mark's test and the sample on CUDA
    result.stdout.fnmatch_lines([f"cuda is required (--posexport-require) and does not load: {MISSING}"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_wrong_mark_is_an_error_and_no_skip(run: Callable[..., pytest.RunResult]) -> None:
    test = """
        import pytest

        @pytest.mark.posexport_provider("tpu")
        def test_unknown():
            pass

        @pytest.mark.posexport_provider()
        def test_nothing():
            pass
    """
    result = run(test=test)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["unknown provider 'tpu'; known: cpu, cuda, webgpu, openvino", "posexport_provider takes one provider*"]
    )


def test_the_plugin_imports_nothing_heavy(good: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(posexport_session):\n    pass\n")
    code = (
        "import sys, pytest\n"
        "code = pytest.main(['--co', '-q', '-p', 'no:posexport', '-p', 'posexport.testing.plugin', '-p', "
        "'no:cacheprovider', '--posexport-bundle', sys.argv[1], 'test_it.py'])\n"
        "print(int(code), sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('numpy', 'torch', 'onnx', 'onnxruntime', 'rich', 'click')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, good], cwd=tmp_path, capture_output=True, text=True, check=True, env=_environment()
    )
    assert "posexport[right-cpu]" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "0 []"


def _environment() -> dict[str, str]:
    """Without plugins of the environment, which may import what they like."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": root}


def suite(data: bytes) -> Any:
    return ElementTree.fromstring(data).find("testsuite")


def test_junit_says_what_failed(good: Path, bad: Path) -> None:
    right, wrong = (suite(junit(posexport.verify(bundle), bundle.name)) for bundle in (good, bad))
    assert (right.get("failures"), right.get("errors"), right.get("skipped")) == ("0", "0", "0")
    assert right.find("testcase").get("classname") == "right.cpu"
    names = [case.get("name") for case in right.findall("testcase")]
    assert names[0] == "verdict"
    assert names[1].startswith("last_hidden_state at length 1, batch 2")
    assert len(names) == int(right.get("tests")) == 1 + len(posexport.verify(good).points)
    failures = wrong.findall("testcase/failure")
    assert int(wrong.get("failures")) == len(failures) >= 2
    assert failures[0].get("message") == posexport.verify(bad).describe()
    assert "is allowed" in failures[1].get("message")
    assert "| FAIL" in wrong.find("system-out").text


def test_junit_holds_what_xml_cannot() -> None:
    case = suite(junit_error('bad\x00 byte, "<quotes>" & \x1b[0m', "a&b")).find("testcase/error")
    assert case.get("message") == 'bad? byte, "<quotes>" & ?[0m'


def test_verify_writes_junit_whatever_the_verdict(good: Path, bad: Path, tmp_path: Path) -> None:
    file = tmp_path / "parity.xml"
    for bundle, code, failed in ((good, 0, False), (bad, 1, True)):
        done = CliRunner().invoke(group, ["verify", str(bundle), "--junit", str(file)])
        assert done.exit_code == code, done.output
        assert (suite(file.read_bytes()).get("failures") != "0") is failed


def test_verify_writes_junit_where_nothing_could_be_checked(good: Path, tmp_path: Path) -> None:
    file, broken = tmp_path / "parity.xml", tmp_path / "broken"
    shutil.copytree(good, broken)
    (broken / SAMPLE).write_bytes(b"cut")
    done = CliRunner().invoke(group, ["verify", str(broken), "--junit", str(file)])
    assert isinstance(done.exception, PosexportError)
    error = suite(file.read_bytes()).find("testcase/error")
    assert error.get("message") == str(done.exception)
    assert suite(file.read_bytes()).get("errors") == "1"


def test_a_junit_file_that_cannot_be_written_is_refused_first(good: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(group, ["verify", str(good / "none"), "--junit", str(tmp_path / "no" / "parity.xml")])
    assert str(done.exception).startswith(f"cannot write {tmp_path / 'no' / 'parity.xml'}")


def test_bundles_of_one_name_are_told_apart(run: Callable[..., pytest.RunResult], good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "other" / good.name)
    result = run("--posexport-bundle", good, "--posexport-bundle", tmp_path / "other" / good.name, "--co", "-q")
    result.stdout.fnmatch_lines([f"posexport[[]{good}-cpu[]]", f"posexport[[]{tmp_path}/other/{good.name}-cpu[]]"])


def test_a_session_is_on_the_provider_of_the_mark(
    run: Callable[..., pytest.RunResult], good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "check_loads", lambda _: None)
    opened: list[str] = []
    monkeypatch.setattr(posexport, "load", lambda _, provider: opened.append(provider))
    test = """
        import pytest

        @pytest.mark.posexport_provider("cuda")
        def test_marked(posexport_session):
            pass

        def test_plain(posexport_session):
            pass

        def test_opened_once(posexport_session):
            pass
    """
    result = run("--posexport-bundle", good, "-k", "test_it", test=test)
    result.assert_outcomes(passed=3, deselected=1)
    assert opened == ["cuda", "cpu"]


def test_the_workflow_to_copy_calls_what_there_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parity-in-ci.md").read_text()
    (workflow,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    jobs = yaml.safe_load(workflow)["jobs"].values()
    lines = [shlex.split(step["run"]) for job in jobs for step in job["steps"] if "run" in step]
    commands = [words for words in lines if words[0] == "posexport"]
    assert len(commands) == 2
    for _, name, *words in commands:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        command.make_parser(click.Context(command)).parse_args(words)  # raises for an unknown option
    installed = {name for words in lines for word in words for name in re.findall(r"^posexport\[(.*)\]$", word)}
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {extra for names in installed for extra in names.split(",")} <= set(extras["optional-dependencies"])
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    known = {option for options in parser._groups for option in options.options for option in option.names()}
    assert set(re.findall(r"--posexport-\w+", page)) == known
