"""What stands on stderr while a command works: lines where there is no terminal, ``-q`` and ``-v``."""

import re
import threading
import time
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from posexport.cli import group, options, terminal
from posexport.cli.command import Command

Work = Callable[[terminal.Progress | None], None]


def work_with(work: Work, *args: str) -> Result:
    """A command that does ``work``, makes a remark and prints a result."""

    @click.command(cls=Command)
    @options.verbosity_options
    def command() -> None:
        with terminal.bar("Working") as tell:
            work(tell)
        terminal.remark("a remark")
        click.echo("result")

    done = CliRunner().invoke(command, list(args))
    assert "result\n" in (done.stdout or done.output) or done.exit_code == 2
    return done


def steps(seconds: float) -> Work:
    def work(tell: terminal.Progress | None) -> None:
        if tell is not None:
            tell(0, 2, "loading")
            tell(1, 2, "exporting")
            tell(12, 116, "proving, length 17, batch 1, no padding")
            time.sleep(seconds)
            tell(116, 116, "")

    return work


def test_a_line_every_few_seconds_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "INTERVAL", 0.02)
    done = work_with(steps(0.3))
    *lines, remark = done.stderr.splitlines()
    assert len(lines) >= 2
    assert set(lines) <= {f"proving 12/116, length 17, batch 1, no padding ({second} s)" for second in range(60)}
    assert remark == "a remark"
    assert done.stdout == "result\n"


def test_quick_work_has_no_lines() -> None:
    assert work_with(steps(0.0)).stderr == "a remark\n"


def test_lines_do_not_wait_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "INTERVAL", 0.02)

    def work(tell: terminal.Progress | None) -> None:
        assert tell is not None
        tell(1, 2, "exporting")
        time.sleep(0.3)

    lines = work_with(work).stderr.splitlines()[:-1]
    assert len(lines) >= 2
    assert all(re.fullmatch(r"exporting \(\d+ s\)", line) for line in lines)


def test_the_lines_end_with_the_work_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "INTERVAL", 0.02)

    def work(tell: terminal.Progress | None) -> None:
        assert tell is not None
        tell(0, 0, "dividing")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), terminal.bar("Working") as tell:
        work(tell)
    assert not [thread for thread in threading.enumerate() if "_tick" in thread.name]


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_prints_results_only(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "INTERVAL", 0.02)
    done = work_with(steps(0.1), option)
    assert (done.stdout, done.stderr) == ("result\n", "")


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose_prints_every_step(option: str) -> None:
    done = work_with(steps(0.0), option)
    told = [re.sub(r" \(\d+ s\)$", "", line) for line in done.stderr.splitlines()]
    proving = "proving 12/116, length 17, batch 1, no padding"
    assert told[:3] == ["loading", "exporting", proving]
    assert told[-1] == "a remark"
    assert done.stdout == "result\n"


def test_quiet_and_verbose_exclude_each_other() -> None:
    done = work_with(steps(0.0), "-q", "-v")
    assert done.exit_code == 2
    assert "-q and -v cannot be given together" in done.output


@pytest.mark.parametrize("name", ["convert", "verify", "generate", "compare", "bench", "tokenizer train"])
def test_commands_that_tell_something_take_quiet_and_verbose(name: str) -> None:
    text = CliRunner().invoke(group, [*name.split(), "--help"]).output
    assert "-q, --quiet" in text
    assert "-v, --verbose" in text


def test_a_proof_is_one_count_and_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "INTERVAL", 5.0)
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    lines = terminal._Lines()
    lines._note(0, 100, "branches of the graph, at length 17")
    now[0] = 60.0
    lines._note(20, 100, "proving, length 17, batch 1")
    assert lines._line == "proving 20%, length 17, batch 1"
    assert lines._left == ", about 4 min left; --length N or --proof reduced checks less"
    lines._note(20, 100, "proving, length 17, batch 3")
    assert lines._left == ", about 4 min left"
