"""The number of threads by default: the machine's cores, affinity, cgroup quotas and OMP_NUM_THREADS."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import torch

from posexport.base.system import threads
from posexport.base.system.threads import allowed_threads, session_threads
from posexport.proof.references.precision_copy import torch_threads
from posexport.run.providers import make_session
from tests.tiny_bundle import tiny_model

CPUS = 8


@pytest.fixture(autouse=True)
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores without limits; returns its folder of control groups."""
    monkeypatch.setattr(threads, "GROUP", tmp_path)
    monkeypatch.setattr(threads, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(psutil, "cpu_count", Mock(return_value=CPUS))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CPUS)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_without_limits_onnx_runtime_decides() -> None:
    assert allowed_threads() == CPUS
    assert session_threads() == 0
    assert session_threads(3) == 3


@pytest.mark.parametrize(
    ("files", "right"),
    [
        ({"cpu.max": "max 100000\n"}, CPUS),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "not a number\n"}, CPUS),
        # without a namespace of control groups, the process is below the mount, and groups around it limit it too
        ({"membership": "0::/a/b\n", "a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CPUS),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 4),
        (
            {
                "membership": "3:pids:/\n1:cpu,cpuacct:/docker/0a\n",
                "cpu/docker/0a/cpu.cfs_quota_us": "50000",
                "cpu/docker/0a/cpu.cfs_period_us": "25000",
            },
            2,
        ),
    ],
)
def test_quotas_of_control_groups(groups: Path, files: dict[str, str], right: int) -> None:
    write(groups, files)
    assert allowed_threads() == right


@pytest.mark.parametrize(("value", "right"), [("2", 2), (" 3 , 2", 3), ("0", CPUS), ("many", CPUS), ("", CPUS)])
def test_omp_num_threads(monkeypatch: pytest.MonkeyPatch, value: str, right: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert allowed_threads() == right


def test_the_smallest_counts(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(groups, {"cpu.max": "500000 100000"})
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 6})
    assert allowed_threads() == session_threads() == 3


def test_systems_without_affinity_or_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(psutil, "Process", lambda: object())  # macOS
    monkeypatch.setattr(psutil, "cpu_count", Mock(side_effect=FileNotFoundError))  # no /proc
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert allowed_threads() == 6


def test_sessions_and_pytorch_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = tiny_model().SerializeToString()
    assert make_session(model).get_session_options().intra_op_num_threads == 1
    assert make_session(model, threads=2).get_session_options().intra_op_num_threads == 2
    before = torch.get_num_threads()
    with torch_threads(0):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_no_threads_are_started_beyond_the_limit() -> None:
    code = (
        "import sys, os, onnxruntime\n"
        "from posexport.run.providers import make_session\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "make_session(sys.stdin.buffer.read())\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    model = tiny_model().SerializeToString()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], input=model, env=environment, capture_output=True, check=True)
    assert run.stdout.split() == [b"0"]
