"""Writes ``posexport/targets/kernel_tables/VERSION.json``, the kernels of the installed ONNX Runtime by provider.

``get_all_opkernel_def`` of the wheel's binding lists the kernels of every provider that it is built with, once their
libraries load. They need no device for that, and of CUDA's libraries only that they exist: stubs stand in for those,
made with ``cc`` from the symbols that the wheel asks for. Every function of a stub returns 0.

Two other accounts check the rows, and where they differ from them is written into the table: the kernels' C++ classes,
whose names are in the provider's library, and the table that ONNX Runtime publishes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from posexport.targets.kernels import Kernels, KernelTable, ProviderKernels
from posexport.targets.providers import PROVIDERS
from posexport.targets.target import MICROSOFT

FOLDER = Path(__file__).parent.parent / "posexport/targets/kernel_tables"
#: rows that the published table has, of operators in graphs of posexport
PUBLISHED = Path(__file__).parent / "kernels_published.json"
#: what no library of the wheel brings: CUDA's and TensorRT's
_ABSENT = ("libcu", "libnv")
_SYSTEM = ("GLIBC", "GCC", "CXXABI")
_OPEN_END = 2**31 - 1
#: run in a process of its own, whose libraries are the stubs; the process ends without destructors, which need CUDA
_READER = """
import json, os, sys
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as binding
kernels = [(k.provider, k.domain, k.op_name, *k.version_range, k.type_constraints)
           for k in binding.get_all_opkernel_def()]
ports = [(s.domain, s.name, [port[0].typeStr for port in (s.inputs, s.outputs) if port])
         for s in binding.get_all_operator_schema()]
with open(sys.argv[1], "w") as file:
    json.dump([onnxruntime.__version__, kernels, ports], file)
os._exit(0)
"""


def registered() -> tuple[str, dict[str, list[Kernels]]]:
    """The version of the installed ONNX Runtime, and the kernels in its registries by provider, in order."""
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        make_stubs(Path(folder))
        answer = Path(folder, "kernels.json")
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        subprocess.run([sys.executable, "-c", _READER, answer], env=environment, check=True)
        version, kernels, ports = json.loads(answer.read_bytes())
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for domain, operator, constraints in ports:
        names[domain, operator] += constraints
    dtypes: defaultdict[str, defaultdict[tuple[str, str, int, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    for provider, domain, operator, since, until, constraints in kernels:
        if domain in ("", MICROSOFT):
            dtypes[provider][domain, operator, since, until] |= _data_types(constraints, names[domain, operator])
    return version, {
        provider: [
            Kernels(operator, domain, since, None if until == _OPEN_END else until, tuple(sorted(types)))
            for (domain, operator, since, until), types in sorted(rows.items())
        ]
        for provider, rows in dtypes.items()
    }


def _data_types(constraints: Mapping[str, list[str]], ports: Iterable[str]) -> set[str]:
    """Of a kernel's types by constraint those of its data: the first of ``ports`` that is no mere condition."""
    for port in ports:
        types = set(re.findall(r"^tensor\((\w+)\)$", "\n".join(constraints.get(port, ())), re.MULTILINE))
        if types - {"bool"}:
            return types
    return {"bool"}


def capi() -> Path:
    """The folder of the installed ONNX Runtime's libraries."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("onnxruntime is not installed")
    return Path(spec.origin).parent / "capi"


def make_stubs(folder: Path) -> None:
    """Libraries in ``folder`` for those of CUDA and TensorRT that the wheel's providers ask for."""
    needed: set[str] = set()
    symbols: defaultdict[str, set[str]] = defaultdict(set)
    for library in capi().glob("libonnxruntime_providers_*.so"):
        libraries = re.findall(r"NEEDED.*\[(.*)\]", _said("readelf", "-d", library))
        needed |= {name for name in libraries if name.startswith(_ABSENT)}
        for kind, symbol in re.findall(r"^ +(\w) (\S+)$", _said("nm", "-D", "--undefined-only", library), re.MULTILINE):
            name, _, version = symbol.partition("@")
            if kind == "U" and not version.startswith(_SYSTEM) and name != "Provider_GetHost":
                symbols[version].add(name)
    for library in needed:
        source, script = folder / "stub.c", folder / "stub.map"
        # symbols without a version are looked for in every library
        names = symbols.get(library, symbols[""])
        source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))
        script.write_text(f"{library} {{ global: *; }};\n")
        versioned = [f"-Wl,--version-script={script}"] if library in symbols else []
        options = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{library}", *versioned]
        subprocess.run(["cc", *options, "-o", folder / library, source], check=True)


def _said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def as_text(table: KernelTable) -> str:
    """The file: one row a line, so that changes can be read."""
    plain = msgspec.to_builtins(table)
    for provider in plain["providers"].values():
        provider["kernels"] = [json.dumps(row) for row in provider["kernels"]]
    return re.sub(r'"(\[\\".*\])"', lambda row: json.loads(row[0]), json.dumps(plain, indent=1)) + "\n"


def main() -> None:
    """Write the table, and print what disagrees with it."""
    version, rows = registered()
    providers = {}
    for provider in PROVIDERS.values():
        kernels = rows.get(provider.ort_name)
        if kernels is None:
            print(f"the installed onnxruntime {version} has no {provider.ort_name}")
            continue
        source = f"get_all_opkernel_def() of {provider.package} {version}"
        providers[provider.ort_name] = ProviderKernels(source=source, disagreements={}, kernels=kernels)
        print(f"{provider.ort_name}: {len(kernels)} rows")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{version}.json").write_text(as_text(KernelTable(onnxruntime=version, providers=providers)))


if __name__ == "__main__":
    main()
