"""What is wrong with the files of a wheel or an sdist: nothing may be missing, nothing of the builder may be inside."""

import email
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

#: bytes; why a wheel has more than 2 MB: docs/releasing.md, "Sizes"
LARGEST = {".whl": 2_450_000, ".gz": 2_000_000}
#: bytes in a wheel of what is no code: tables, templates and the bundle of the smoke tests
LARGEST_DATA = 90_000
NEEDED = ("posexport/py.typed", "posexport/models/encoder.py", "posexport/catalogue/catalogue.json")
PATTERNS = (r"LICENSE$", r"\.jinja$", r"testing/smoke/embedder/model\.onnx$", r"(METADATA|PKG-INFO)$")
#: folders of people and machines
_PATHS = re.compile(rb"(?<![\w./~-])/(?:home|root|Users|work|builds|tmp/posexport-release)/[\w.-]+")


def files_of(artefact: Path) -> dict[str, bytes]:
    """Every file by its name; of an sdist without its folder."""
    if artefact.suffix == ".whl":
        with zipfile.ZipFile(artefact) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(artefact) as sdist:
        opened = {member.name.partition("/")[2]: sdist.extractfile(member) for member in sdist if member.isfile()}
        return {name: file.read() for name, file in opened.items() if file is not None}


def faults(artefact: Path, python: str) -> Iterator[str]:
    """Sentences. ``python``: requires-python of the project."""
    files = files_of(artefact)
    if (size := artefact.stat().st_size) > (largest := LARGEST[artefact.suffix]):
        yield f"it has {size} bytes, more than {largest}"
    if artefact.suffix == ".whl" and (size := _size_of_data(artefact)) > LARGEST_DATA:
        yield f"what is no code has {size} bytes, more than {LARGEST_DATA}"
    yield from _missing(files)
    for name, data in files.items():
        if re.match(r"tests?/|ci/|docs/", name) or name.endswith((".pyc", ".orig", ".rej")):
            yield f"{name} does not belong there"
        # examples in docstrings name folders of nobody
        for path in set(_PATHS.findall(data)) if not name.endswith((".py", ".md", "METADATA", "PKG-INFO")) else ():
            yield f"{name} holds the path {path.decode()}"
    metadata = next(data for name, data in files.items() if re.search(r"(dist-info/METADATA|^PKG-INFO)$", name))
    headers = email.message_from_bytes(metadata)
    if headers["Requires-Python"] != python:
        yield f"its Requires-Python is {headers['Requires-Python']}, not {python}"
    if headers["License-Expression"] != "Apache-2.0":
        yield f"its License-Expression is {headers['License-Expression']}"


def _size_of_data(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as packed:
        infos = [info for info in packed.infolist() if not re.search(r"\.py$|\.dist-info/", info.filename)]
    return sum(info.compress_size for info in infos)


def _missing(files: Mapping[str, bytes]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in NEEDED if name not in files)
    for pattern in PATTERNS:
        if not any(re.search(pattern, name) for name in files):
            yield f"no file is like {pattern}"
