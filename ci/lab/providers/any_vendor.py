"""Lets a copy of OpenVINO's plug-in compute on a processor that is not Intel's: any_vendor.py LIBRARY.

`MatchOvDevice` of onnxruntime-ep-openvino 1.8.1 compares ONNX Runtime's vendor id of the processor with Intel's
(https://github.com/microsoft/onnxruntime/pull/31981). OpenVINO computes on any x86-64 processor. The conditional jump
after that comparison becomes an unconditional one, in the installed file of a laboratory environment.
"""

import sys
from pathlib import Path

#: call *0x9a0(%rax); cmp $0x8086, %eax; je
_COMPARED = bytes.fromhex("ff90a0090000 3d86800000 74")
_ALWAYS = _COMPARED[:-1] + b"\xeb"


def main() -> None:
    """Patch the library that the command line names; a second time changes nothing."""
    library = Path(sys.argv[1])
    content = library.read_bytes()
    if content.count(_COMPARED) + content.count(_ALWAYS) != 1:
        sys.exit(f"{library} has no comparison of the vendor id that this script knows: is it version 1.8.1?")
    library.write_bytes(content.replace(_COMPARED, _ALWAYS))


if __name__ == "__main__":
    main()
