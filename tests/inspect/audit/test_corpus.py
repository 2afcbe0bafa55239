"""Every file of the corpus is found by its rule, and the same file without the fault has no error and no warning."""

from pathlib import Path

import pytest

import posexport
from ci.lab.audit.table import unchecked
from posexport.base.targets import kernels
from tests.inspect.audit.corpus import CASES, Case

MADE = [case for case in CASES if case.code]


@pytest.mark.parametrize("case", MADE, ids=lambda case: f"{case.number}-{case.code}")
@pytest.mark.filterwarnings("ignore")  # of the tools that make the files
def test_a_public_case_is_found(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.ort:
        monkeypatch.setattr(kernels, "table_of", lambda _: case.ort)
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder in (bad, good):
        folder.mkdir()
    found = posexport.audit(case.file(bad, fault=True), run=case.run)
    assert case.code in {finding.code for finding in found}
    right = posexport.audit(case.file(good, fault=False), run=case.run)
    assert [finding.message for finding in right.at_least("warning")] == []
    assert case.code not in {finding.code for finding in right}


def test_cases_without_a_file_say_why() -> None:
    assert all(case.code or case.made.startswith("not here: ") for case in CASES)
    assert len({case.number for case in CASES}) == len(CASES)


def test_everything_found_in_packages_was_checked() -> None:
    assert unchecked() == []
