"""A certificate: the digests of a model's files with the verdict of their proof, for the page that offers the files.

It is no signature: it says which bytes were proven, and is as trustworthy as the place that it is read from.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from posexport.errors import PosexportError
from posexport.run.bundle.manifest import LARGEST, MANIFEST, FileEntry, Manifest, SourceInfo, is_portable
from posexport.run.bundle.read import locate, read, sha256
from posexport.version import VERSION

CERTIFICATE_VERSION = 1


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was proven, and of which bytes.

    Attributes:
        certificate_version: version of this format. Fields that a reader does not know are ignored.
        posexport: the version that checked the files.
        created: ISO 8601 time.
        verdict: of the check, as `posexport verify` prints it.
        compared_with: ``source``: the whole grid against the source; ``sample``: the sample that the bundle carries.
        provider: the execution provider that ran the graph.
        tools: versions of the libraries that ran it.
        source: what the model was converted from; None for a lone .onnx.
        proof: verdict of the conversion, by the manifest; None for a lone .onnx.
        files: every file with its size and SHA-256, the manifest included.
    """

    certificate_version: int = CERTIFICATE_VERSION
    posexport: str = VERSION
    created: str
    verdict: str
    compared_with: str
    provider: str
    tools: dict[str, str]
    source: SourceInfo | None
    proof: str | None
    files: dict[str, FileEntry]

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def to_text(self) -> str:
        """One line for a reader."""
        origin = "" if self.source is None else f", from {self.source.name} (sha256 {self.source.sha256})"
        by = f"certified by posexport {self.posexport} on {self.created}"
        return f"{len(self.files)} files as {by}: {self.verdict}{origin}"


def certify(target: Path, *, verdict: str, compared_with: str, provider: str, tools: Mapping[str, str]) -> Certificate:
    """The certificate of ``target``, a bundle or an .onnx file with its external data, after a check that passed."""
    manifest = read(target) if target.is_dir() else None
    folder, names = _files(target, manifest)
    return Certificate(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=verdict,
        compared_with=compared_with,
        provider=provider,
        tools=dict(tools),
        source=manifest.source if manifest else None,
        proof=None if manifest is None else "proven" if manifest.proven else "not proven",
        files={name: _entry(locate(folder, name)) for name in names},
    )


def check_certificate(target: Path, path: Path) -> Certificate:
    """The certificate in ``path``; its files are those of ``target``.

    Raises:
        PosexportError: it is no certificate, or names the first file that is missing, altered or not certified.
    """
    certificate = _decoded(path)
    folder, names = _files(target, read(target) if target.is_dir() else None)
    if target.is_file() and len(certificate.files) == 1:  # a downloaded file may have another name
        certificate = msgspec.structs.replace(certificate, files={target.name: next(iter(certificate.files.values()))})
    if unknown := sorted(set(names) - certificate.files.keys()):
        raise PosexportError(f"{path} does not certify {unknown[0]} of {target}; get the certificate of these files")
    for name, certified in certificate.files.items():
        entry = _entry(locate(folder, name))
        if entry != certified:
            raise PosexportError(
                f"{folder / name} has sha256 {entry.sha256} ({entry.size} bytes), {path} certifies {certified.sha256} "
                f"({certified.size} bytes): it is another file; download it again"
            )
    return certificate


def _decoded(path: Path) -> Certificate:
    try:
        with path.open("rb") as file:
            certificate = msgspec.json.decode(file.read(LARGEST), type=Certificate)
    except OSError as err:
        raise PosexportError(f"cannot read the certificate {path}: {err.strerror}") from err
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise PosexportError(f"{path} is not a certificate of posexport: {err}") from err
    if certificate.certificate_version > CERTIFICATE_VERSION:
        raise PosexportError(
            f"{path} has version {certificate.certificate_version} of the format, this posexport reads "
            f"{CERTIFICATE_VERSION}: pip install --upgrade posexport"
        )
    if not certificate.files or not all(is_portable(name) or name == MANIFEST for name in certificate.files):
        raise PosexportError(f"{path} names no files, or files outside the folder; get it again")
    return certificate


def _files(target: Path, manifest: Manifest | None) -> tuple[Path, list[str]]:
    """The folder and the names of a model's files."""
    if manifest is not None:
        return target, [MANIFEST, *manifest.files]
    if not target.is_file():
        raise PosexportError(f"there is no bundle or .onnx file: {target}")
    return target.parent, [target.name, *_external(target)]


def _external(model: Path) -> list[str]:
    """The files of a model's external data, relative to its folder."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    try:
        graph = onnx.load(str(model), load_external_data=False).graph
    except Exception as err:  # protobuf's parser raises various types
        raise PosexportError(f"{model} is not an ONNX model: {err}") from err
    locations = {
        entry.value
        for tensor in graph.initializer
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(locations)


def _entry(path: Path) -> FileEntry:
    return FileEntry(size=path.stat().st_size, sha256=sha256(path))
