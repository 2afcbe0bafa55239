"""Whether a graph is a bundle's: its folder has a manifest that lists the file with its size and hash."""

from pathlib import Path

from posexport.errors import PosexportError
from posexport.inspect.audit.reading.folder import Folder
from posexport.run.bundle.manifest import MANIFEST, Manifest
from posexport.run.bundle.read import locate, read, sha256


def bundle_of(graph: Path, folder: Folder) -> Manifest | None:
    """The manifest of the bundle that ``graph`` belongs to; None of a copy elsewhere, or one that was altered.

    Metadata of the graph stay in a copy, and clients of the copy do not set the session options of `posexport.load`.
    """
    for root in folder.roots:
        if not (root / MANIFEST).is_file():
            continue
        try:
            manifest = read(root)
            name = graph.name if root == folder.path else f"{folder.path.name}/{graph.name}"
            entry = manifest.files.get(name)
            if entry is None:
                continue
            path = locate(root, name)
            if path.stat().st_size == entry.size and sha256(path) == entry.sha256:
                return manifest
        except (PosexportError, OSError):  # posexport.load refuses the bundle with the reason
            continue
    return None
