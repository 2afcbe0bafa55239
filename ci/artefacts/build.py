"""Builds the wheel and the sdist of a commit: the same bytes wherever and whenever that is done."""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = Path("posexport/models")


def checkout(commit: str, folder: Path, *, links: bool = True) -> Path:
    """The files of ``commit``; without ``links`` as Windows and zip downloads have them: a link is a text file."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="tar")
    if not links:
        goal = os.readlink(folder / LINK)
        (folder / LINK).unlink()
        (folder / LINK).write_text(goal, encoding="utf-8")
    return folder


def time_of(commit: str) -> int:
    """Seconds since 1970 at which ``commit`` was made: the time of every file in the artefacts."""
    shown = subprocess.run(["git", "log", "-1", "--format=%ct", commit], cwd=ROOT, capture_output=True, check=True)
    return int(shown.stdout)


def build(source: Path, output: Path, epoch: int, *kinds: str) -> list[Path]:
    """The artefacts of ``kinds`` ("wheel", "sdist"; both by default) of a checkout or an unpacked sdist."""
    constraint = str(ROOT / "ci" / "constraints.txt")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PIP_CONSTRAINT": constraint}
    environment.pop("PYTHONPATH", None)
    flags = [f"--{kind}" for kind in kinds or ("wheel", "sdist")]
    line = [sys.executable, "-m", "build", *flags, "--outdir", str(output), str(source)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ci/release: build failed\n{done.stdout}{done.stderr}")
    artefacts = sorted(path for path in output.iterdir() if path.name.endswith((".whl", ".tar.gz")))
    for artefact in artefacts:
        if artefact.name.endswith(".tar.gz"):
            _without_times(artefact, epoch)
    return artefacts


def unpacked(sdist: Path, folder: Path) -> Path:
    """The folder in an sdist."""
    with tarfile.open(sdist) as files:
        files.extractall(folder, filter="data")
    return next(folder.iterdir())


def _without_times(sdist: Path, epoch: int) -> None:
    """setuptools writes the time of the build, and the builder's name and number, into an sdist."""
    plain = BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old, key=lambda each: each.name):
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.size, clean.mtime = member.type, member.size, epoch
            clean.mode = 0o755 if member.isdir() else 0o644
            new.addfile(clean, old.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed:
        packed.write(plain.getvalue())


def moved(artefacts: list[Path], folder: Path) -> list[Path]:
    """The artefacts in ``folder``, which holds nothing else afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return [Path(shutil.copy(artefact, folder)) for artefact in artefacts]
