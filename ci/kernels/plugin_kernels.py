"""The kernels of a provider that is a plug-in of ONNX Runtime, as it describes them when a session opens.

No binding lists them. ONNX Runtime loads ``recorder.c``, compiled by ``cc``, instead of the plug-in; this library loads
the plug-in and writes its calls of the C API to a file. The session needs a device: for WebGPU a Vulkan driver.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from posexport.base.targets.providers import Provider

#: provider, domain, operator, first and last version, type strings by constraint: what the binding lists of other ones
Registered = tuple[str, str, str, int, int, dict[str, list[str]]]
_SOURCE = Path(__file__).parent / "recorder.c"
#: for a separate process: the library replaces functions of ONNX Runtime
_READER = """
import importlib, os, sys
import onnxruntime
from onnx import parser
from posexport.base.targets.providers import PROVIDERS, devices
provider = PROVIDERS[sys.argv[1]]
importlib.import_module(provider.plugin).get_library_path = lambda: sys.argv[2]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(devices(provider), {})
model = parser.parse_model('<ir_version: 8, opset_import: ["": 18]> one (float[2] x) => (float[2] y) { y = Abs(x) }')
onnxruntime.InferenceSession(model.SerializeToString(), options)
os._exit(0)
"""


def registered(provider: Provider) -> list[Registered]:
    """The kernels of an installed plug-in."""
    module: Any = importlib.import_module(provider.plugin)
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        library, calls = Path(folder, "recorder.so"), Path(folder, "calls.txt")
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
        environment = {**os.environ, "PLUGIN": module.get_library_path(), "KERNELS": str(calls)}
        subprocess.run([sys.executable, "-c", _READER, provider.name, library], env=environment, check=True)
        return list(read(calls.read_text().splitlines(), provider.ort_name))


def read(calls: Iterable[str], provider: str) -> Iterator[Registered]:
    """Kernels from calls, one a line: the function, the object, and the arguments."""
    from onnx import TensorProto

    types: dict[str, str] = {}
    described: list[dict[str, Any]] = []
    current: dict[str, dict[str, Any]] = {}
    for line in calls:
        call, key, *arguments = line.split()
        if call == "type":
            types[key] = f"tensor({TensorProto.DataType.Name(int(arguments[0])).lower()})"
        elif call == "create":
            current[key] = {"constraints": {}}
            described.append(current[key])
        elif call == "constraint":
            current[key]["constraints"][arguments[0]] = [types[name] for name in arguments[1:]]
        else:
            current[key][call] = arguments
    for kernel in described:
        (operator,), (since, until) = kernel["operator"], kernel["versions"]
        domain = "".join(kernel["domain"])
        yield provider, domain, operator, int(since), int(until), kernel["constraints"]
