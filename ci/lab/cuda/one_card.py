"""Blanks the code for other cards in a library of CUDA, in place: ``one_card.py LIBRARY COMPUTE``.

The section ``.nv_fatbin`` holds containers with an entry for each compute capability, of which the driver loads the one
that fits. Zeros in the place of the others compress to nothing: onnxruntime-gpu 1.31.1 to 60 MB instead of 244. The
layout is not documented; it was read from libraries of CUDA 13, and what does not follow it ends this program.
"""

import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

_CONTAINER = 0xBA55ED50
#: magic number, version, bytes of this header, bytes behind it
_HEAD = struct.Struct("<IHHQ")
#: kind, attributes, bytes of this header, bytes behind it
_ENTRY = struct.Struct("<HHIQ")
#: where an entry has its compute capability: 90 for 9.0
_COMPUTE = 28


def main(library: Path, compute: int) -> None:
    """Blank the entries that are not for ``compute``; say how many bytes each capability has."""
    data = bytearray(library.read_bytes())
    offset, size = _section(library, ".nv_fatbin")
    at, end, found = offset, offset + size, Counter[int]()
    while at < end:
        magic, _, head, behind = _HEAD.unpack_from(data, at)
        if magic != _CONTAINER:
            at += 8  # between containers is padding
            continue
        entry, at = at + head, at + head + behind
        while entry < at:
            _, _, head, behind = _ENTRY.unpack_from(data, entry)
            (capability,) = struct.unpack_from("<I", data, entry + _COMPUTE)
            found[capability] += behind
            if capability != compute:
                data[entry + head : entry + head + behind] = bytes(behind)
            entry += head + behind
    if not found[compute]:
        sys.exit(f"{library} has no code for compute capability {compute}, but for {sorted(found)}")
    library.write_bytes(data)
    print(", ".join(f"{capability}: {count / 1e6:.1f} MB" for capability, count in sorted(found.items())))


def _section(library: Path, name: str) -> tuple[int, int]:
    """The offset and the size of a section in the file."""
    table = subprocess.run(["readelf", "-S", "-W", library], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"\s{re.escape(name)}\s+\w+\s+[0-9a-f]+\s+([0-9a-f]+)\s+([0-9a-f]+)", table)
    if found is None:
        sys.exit(f"{library} has no section {name}")
    return int(found[1], 16), int(found[2], 16)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
