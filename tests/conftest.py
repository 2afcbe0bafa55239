"""What all tests share: traces, the choice of tests, and the check that an oracle stands on its own."""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import torch

from tests.tiers import check, is_long
from tests.traces import Traces

pytest_plugins = ["tests.sample", "tests.record_long"]


@pytest.fixture(scope="session", autouse=True)
def traces() -> Iterator[Traces]:
    """``traces(source, opset)``: `trace`, once in a process; what converts in this process takes it too.

    The graph that a test is the first to ask for is the one that users get; later tests get copies of it, made in
    memory (`tests.traces`). Modules marked ``fresh``, users' modules and subprocesses always trace.
    """
    # ci/lab/mutants keeps them as files where what it changes comes after the trace
    folder = os.environ.get("POSEXPORT_TRACES")
    once = Traces(None if folder is None else Path(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posexport.conversion.export.build.trace", once)
        yield once


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a checkpoint is refused with where transformers is not installed; it comes with the extra dev."""
    monkeypatch.setattr("posexport.through.refusals.is_installed", lambda _: False)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """At tiny sizes a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: exit code, stdout, stderr."""
    from posexport.cli import main

    def command(*args: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["posexport", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return ended.value.code if isinstance(ended.value.code, int) else 0, out, err

    return command


@pytest.fixture(scope="session", autouse=True)
def short_calls() -> Iterator[None]:
    """Trial calls of users' modules have at most 1,025 tokens, not 8,193: a second a module, and memory.

    Tests of the search and of longer tables say how far it goes; commands in processes search as far as for users.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posexport.modules.axes.largest.LONGEST", 1025)
        patch.setattr("posexport.modules.decoder_facts.LONGEST", 1025)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_progress_lines() -> Iterator[None]:
    """How many lines a command prints while it works depends on the machine's load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posexport.cli.terminal.INTERVAL", 3600.0)
        yield


@pytest.fixture(scope="module", autouse=True)
def traced_anew(request: pytest.FixtureRequest, traces: Traces) -> Iterator[None]:
    """In a module that is marked ``fresh``."""
    traces.fresh = request.node.get_closest_marker("fresh") is not None
    yield
    traces.fresh = False


def _codes(code: CodeType) -> list[CodeType]:
    return [code, *(inner for c in code.co_consts if isinstance(c, CodeType) for inner in _codes(c))]


def own_helpers(function: FunctionType) -> set[str]:
    """Names of posexport's objects that ``function`` uses, in functions nested in it and those that it closes over."""
    module = inspect.getmodule(function)
    ours = {
        name
        for name, value in vars(module).items()
        if (getattr(value, "__module__", None) or getattr(value, "__name__", "")).split(".")[0]
        in ("posexport", module.__name__)
        or type(value).__module__.split(".")[0] == "posexport"
    }
    used = {name for code in _codes(function.__code__) for name in code.co_names}
    closed_over = [cell.cell_contents for cell in function.__closure__ or ()]
    theirs = {name for inner in closed_over if isinstance(inner, FunctionType) for name in own_helpers(inner)}
    return theirs | (used & ours) | {name for name in used if name.split(".")[0] == "posexport"}


@pytest.fixture(scope="session")
def helpers_of() -> Callable[[FunctionType], set[str]]:
    """`own_helpers`."""
    return own_helpers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked all too: they take long")


#: the files that take longest, 20 seconds of a processor or more, which the workers begin with
FIRST = (
    *("test_lowering", "test_convert", "test_branches", "test_encoder_decoder", "test_chain", "test_recipe"),
    *("test_rotation_graphs", "test_packed_heads", "test_ops", "test_passes", "test_position_rounding"),
    *("test_generate", "test_steps", "test_parity", "test_user_modules", "test_export", "test_explain"),
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked all; one worker takes a whole file, whose fixtures it then makes once."""
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS:
        check(items)
    if config.getoption("--sample") is not None:
        return
    if not config.getoption("--all"):
        left_out = [item for item in items if is_long(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_long(item)]
    if "POSEXPORT_TESTS_IN_ORDER" not in os.environ:  # ci/lab/mutants says which come first
        place = {name: number for number, name in enumerate(FIRST)}
        items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish() -> None:
    """What is imported by now stays; collecting garbage among it again and again is a sixth of the time of a trace."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 20)
