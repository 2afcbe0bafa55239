"""Files for the repository's host: valid by their schemas, safe by a linter, and without logic of their own."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
#: by schema, which check-jsonschema brings
FILES = {
    "github-workflows": WORKFLOWS,
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-issue-forms": [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def valid(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema comes with the extra dev")
    line = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("schema", FILES)
def test_every_file_is_valid(schema: str) -> None:
    assert FILES[schema]
    done = valid(schema, *FILES[schema])
    assert done.returncode == 0, done.stdout


def test_a_damaged_workflow_is_noticed(tmp_path: Path) -> None:
    damaged = tmp_path / "ci.yml"
    damaged.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on", "run-on"), encoding="utf-8")
    assert valid("github-workflows", damaged).returncode == 1


def linter() -> str:
    """zizmor, of this environment or of the path."""
    found = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    if found is None:
        pytest.skip("zizmor comes with the extra dev")
    return found


def test_the_linter_finds_nothing() -> None:
    line = [linter(), "--offline", "--pedantic", "--no-progress", "--quiet", str(GITHUB)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_only_call_scripts(workflow: Path) -> None:
    """One command of the repository a step; actions by the hash of a commit, with the version that it had."""
    for step in steps(workflow):
        if "run" in step:
            words = step["run"].removeprefix("python ").split()
            assert re.fullmatch(r"ci/[\w./ -]+", " ".join(words)), step["run"]
            assert (ROOT / words[0]).is_file(), step["run"]
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
    for line in workflow.read_text(encoding="utf-8").splitlines():
        assert "uses:" not in line or re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_the_tests_run_on_every_python_of_the_classifiers() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == claimed
    release = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert all(f"            {version}\n" in release for version in claimed)


def test_issue_forms_ask_for_the_environment() -> None:
    for form in FILES["github-issue-forms"]:
        fields = yaml.safe_load(form.read_text(encoding="utf-8"))["body"]
        assert any(field["attributes"]["label"] == "posexport env" for field in fields), form.name
