"""What ``ci/release`` does: builds, compares, looks inside, installs and tries."""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from ci.artefacts.build import ROOT, build, checkout, moved, time_of, unpacked
from ci.artefacts.contents import faults
from ci.artefacts.interpreter import interpreter
from ci.artefacts.notes import heading
from ci.artefacts.smoke import smoke

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]


def built(commit: str, folder: Path) -> list[Path]:
    """Wheel and sdist of ``commit``, after builds of other folders had the same bytes."""
    epoch = time_of(commit)
    source = checkout(commit, folder / "checkout")
    artefacts = build(source, folder / "first", epoch)
    same = {path.name: path.read_bytes() for path in artefacts}
    again = build(checkout(commit, folder / "another" / "folder"), folder / "second", epoch)
    unlinked = build(checkout(commit, folder / "unlinked", links=False), folder / "third", epoch, "wheel")
    sdist = next(path for path in artefacts if path.name.endswith(".tar.gz"))
    from_sdist = build(unpacked(sdist, folder / "sdist"), folder / "fourth", epoch, "wheel")
    for what, others in (
        ("of another folder", again),
        ("of a checkout without links", unlinked),
        ("of the sdist", from_sdist),
    ):
        for path in others:
            if path.read_bytes() != same[path.name]:
                raise SystemExit(f"ci/release: {path.name} {what} has other bytes")
            print(f"the same bytes {what}: {path.name}")
    return artefacts


def check(artefact: Path) -> None:
    """Looks inside; SystemExit with every fault."""
    if wrong := list(faults(artefact, PROJECT["requires-python"])):
        raise SystemExit("\n".join(f"ci/release: {artefact.name}: {fault}" for fault in wrong))
    line = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", artefact]
    subprocess.run(line, check=True)
    digest = hashlib.sha256(artefact.read_bytes()).hexdigest()
    print(f"{artefact.name}: {artefact.stat().st_size / 1e6:.2f} MB, sha256 {digest}")


def check_released(commit: str) -> None:
    """The tag of the commit and the changelog name the version, with a date."""
    version = PROJECT["version"]
    tags = subprocess.run(
        ["git", "tag", "--points-at", commit], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    if f"v{version}" not in tags:
        raise SystemExit(f"ci/release: {commit} has no tag v{version}; --dry-run goes without")
    part = heading(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if part is None or not part[1][:4].isdecimal():
        raise SystemExit(f"ci/release: CHANGELOG.md has no heading '## {version} (DATE)'; --dry-run goes without")


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/release", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="of a commit without a tag, too")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="tries these versions only")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    if not arguments.dry_run:
        check_released(arguments.commit)
    pythons = {version: interpreter(version) for version in arguments.python or PYTHONS}
    with tempfile.TemporaryDirectory(prefix="posexport-release-") as folder:
        artefacts = moved(built(arguments.commit, Path(folder)), arguments.output)
    for artefact in artefacts:
        check(artefact)
    wheel, sdist = (next(path for path in artefacts if path.name.endswith(end)) for end in (".whl", ".tar.gz"))
    for version, python in pythons.items():
        print(f"\nPython {version}: the wheel, without PyTorch", flush=True)
        smoke(wheel, python)
    first = next(iter(pythons))
    print(f"\nPython {first}: the sdist, with PyTorch", flush=True)
    smoke(sdist, pythons[first], "export,hub,onnxruntime")
    print(f"\nci/release: {arguments.output} is ready: {', '.join(path.name for path in artefacts)}")


if __name__ == "__main__":
    main()
