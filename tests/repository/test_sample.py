"""The sample of the long tests that ends `.ci/run` (tests/sample.py)."""

import json

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import time
import pytest

def test_short():
    pass

@pytest.mark.all
@pytest.mark.parametrize("number", range(20))
def test_long(number):
    try:
        time.sleep({seconds})
    except BaseException as err:
        raise ValueError("as code reports what a user's module raises") from err
    assert number != {wrong}
"""


@pytest.fixture
def sample(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers = all")

    def run(seed, *options, allowed=30.0, seconds=0.0, wrong=-1):
        pytester.makepyfile(test_it=TESTS.format(seconds=seconds, wrong=wrong))
        plugins = ("-p", "no:posexport", "-p", "tests.sample")
        return pytester.runpytest_inprocess(*plugins, "-v", "--sample", str(allowed), "--sample-seed", seed, *options)

    return run


def order(result):
    return [line.split("[")[1].split("]")[0] for line in result.outlines if "::test_long[" in line and "PASSED" in line]


def test_all_run_in_an_order_that_the_seed_draws(sample):
    one, again, other = sample("a"), sample("a"), sample("b")
    one.assert_outcomes(passed=20, deselected=1)
    assert order(one) == order(again) != order(other)
    assert sorted(map(int, order(one))) == sorted(map(int, order(other))) == [*range(20)]


def test_what_the_time_is_too_short_for_is_no_failure_and_no_list(sample):
    result = sample("a", allowed=2.0, seconds=0.6)
    passed = result.parseoutcomes()
    assert result.ret == 0
    assert 1 <= passed["passed"] <= 4
    assert "skipped" not in passed
    result.stdout.fnmatch_lines(["sample by 'a': * tests marked all"])


def test_a_test_without_end_is_left(sample):
    result = sample("a", allowed=0.3, seconds=60)
    assert result.ret == 0
    assert result.duration < 20


def test_a_failure_says_how_to_repeat_it(sample):
    result = sample("a", wrong=7)
    result.assert_outcomes(passed=19, failed=1, deselected=1)
    result.stdout.fnmatch_lines(
        ["to repeat it: ./ci/test --all 'test_it.py::test_long[[]7[]]'", "*1 failed, 19 passed*"]
    )


def test_parts_are_recorded_and_what_passed_does_not_run_again(sample, tmp_path):
    record = tmp_path / "record.jsonl"
    first = sample("a", f"--record={record}", allowed=2.0, seconds=0.6).parseoutcomes()
    assert 1 <= first["passed"] <= 4
    sample("b", f"--record={record}", wrong=7).assert_outcomes(
        passed=19 - first["passed"], failed=1, deselected=1 + first["passed"]
    )
    sample("c", f"--record={record}").assert_outcomes(passed=1, deselected=20)
    entries = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(entries) == 21
    assert [entry["test"] for entry in entries if entry["outcome"] == "failed"] == ["test_it.py::test_long[7]"]
