"""Writes ``posexport/base/targets/kernel_tables/VERSION.json``, the kernels of the installed ONNX Runtime by provider.

``get_all_opkernel_def`` of the wheel's binding lists the kernels of every provider that it is built with, once their
libraries load. They need no device for that, and of CUDA's libraries only that they exist: stubs stand in for those,
made with ``cc`` from the symbols that the wheel asks for. Every function of a stub returns 0. What an installed
plug-in registers is written down by `plugin_kernels`.

Two other accounts check the rows, and where they differ from them is written into the table: the kernels' C++ classes,
whose names are in the provider's library, and the table that ONNX Runtime publishes.
"""

import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import msgspec
import plugin_kernels

from posexport.base.targets.kernels import Kernels, KernelTable, ProviderKernels
from posexport.base.targets.providers import CUDA, PROVIDERS, is_plugin
from posexport.base.targets.target import MICROSOFT

FOLDER = Path(__file__).parents[2] / "posexport/base/targets/kernel_tables"
#: rows that the published table has, of operators in graphs of posexport
PUBLISHED = Path(__file__).parent / "published.json"
#: what no library of the wheel brings: CUDA's and TensorRT's
_ABSENT = ("libcu", "libnv")
_SYSTEM = ("GLIBC", "GCC", "CXXABI")
_OPEN_END = 2**31 - 1
#: how C++ spells element types in the name of a class, and what ONNX Runtime's type strings call them
_CXX = {
    "f": "float",
    "d": "double",
    "b": "bool",
    "a": "int8",
    "s": "int16",
    "i": "int32",
    "l": "int64",
    "h": "uint8",
    "t": "uint16",
    "j": "uint32",
    "m": "uint64",
    "MLFloat16": "float16",
    "BFloat16": "bfloat16",
    "Float8E4M3FN": "float8e4m3fn",
    "Float8E5M2": "float8e5m2",
    "Float4E2M1x2": "float4e2m1",
}
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
    for plugin in filter(is_plugin, PROVIDERS.values()):
        kernels += plugin_kernels.registered(plugin)
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for domain, operator, constraints in ports:
        names[domain, operator] += constraints
    dtypes: defaultdict[str, defaultdict[tuple[str, str, int, int], dict[str, set[str]]]]
    dtypes = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
    for provider, domain, operator, since, until, constraints in kernels:
        if domain in ("", MICROSOFT):
            types = dtypes[provider][domain, operator, since, until]
            for port in names[domain, operator]:
                types[port] |= set(re.findall(r"^tensor\((\w+)\)$", "\n".join(constraints.get(port, ())), re.MULTILINE))
    return version, {
        provider: [
            Kernels(operator, domain, since, None if until == _OPEN_END else until, data_types(types))
            for (domain, operator, since, until), types in sorted(rows.items())
        ]
        for provider, rows in dtypes.items()
    }


def data_types(by_port: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Of types by constraint, the first input's first, those of the first that is no condition, index or shape."""
    data = (types for types in by_port.values() if types - {"bool", "int32", "int64"})
    return tuple(sorted(next(data, set().union(*by_port.values()))))


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


def classes(library: Path) -> dict[tuple[str, str], set[str]]:
    """The element types of the CUDA kernels' C++ classes by (domain, operator), where a class has the operator's name.

    A class that is no template of an element type says nothing; kernels of other types may share one.
    """
    types: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for contrib, length, rest in re.findall(rb"\0N11onnxruntime(7contrib)?4cuda(\d+)(\w+)E(?=\0)", content):
            name, arguments = rest[: int(length)].decode(), rest[int(length) :].decode()
            first = re.match(r"I(?:NS_\d+([A-Z]\w*?)E|([a-z]))", arguments)
            if first and (first[1] or first[2]) in _CXX:
                types[MICROSOFT if contrib else "", name].add(_CXX[first[1] or first[2]])
    return types


def differences_from_classes(kernels: Iterable[Kernels], library: Path) -> Iterator[str]:
    """Operators whose kernels compute other types than the classes of their name."""
    registered_types: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in kernels:
        registered_types[row.domain, row.operator] |= set(row.dtypes)
    for key, types in sorted(classes(library).items()):
        if key in registered_types and types != registered_types[key]:
            yield _difference(" ".join(filter(None, key)), registered_types[key], types)


def differences_from_published(kernels: Iterable[Kernels], published: Iterable[Kernels]) -> Iterator[str]:
    """Published rows that the registry does not have, or has with other versions or types."""
    by_version = {(row.domain, row.operator, row.since): row for row in kernels}
    for row in published:
        name = f"{row.domain} {row.operator} {row.since}".strip()
        own = by_version.get((row.domain, row.operator, row.since))
        if own is None:
            yield f"{name}: not registered"
        elif own.until != row.until:
            yield f"{name}: registered up to {own.until or 'any'}, there up to {row.until or 'any'}"
        elif set(own.dtypes) != set(row.dtypes):
            yield _difference(name, set(own.dtypes), set(row.dtypes))


def _difference(name: str, own: set[str], other: set[str]) -> str:
    parts = (("registered alone", own - other), ("there alone", other - own))
    return f"{name}: " + "; ".join(f"{where} {', '.join(sorted(types))}" for where, types in parts if types)


def main() -> None:
    """Write the table, and print what disagrees with it."""
    version, rows = registered()
    published = msgspec.json.decode(PUBLISHED.read_bytes(), type=dict[str, str | list[Kernels]])
    providers = {}
    for provider in PROVIDERS.values():
        kernels = rows.get(provider.ort_name)
        if kernels is None:
            print(f"the installed onnxruntime {version} has no {provider.ort_name}")
            continue
        other = published.get(provider.ort_name)
        disagreements = {} if other is None else {published["source"]: list(differences_from_published(kernels, other))}
        library = capi() / "libonnxruntime_providers_cuda.so"
        if provider is CUDA:
            disagreements[f"class names in {library.name}"] = list(differences_from_classes(kernels, library))
        plugin = f"{provider.package} {metadata.version(provider.package)}" if is_plugin(provider) else ""
        source = f"get_all_opkernel_def() of {provider.package} {version}"
        if plugin:
            source = f"what {plugin} registers with onnxruntime {version}"
        providers[provider.ort_name] = ProviderKernels(
            source=source, plugin=plugin, disagreements=disagreements, kernels=kernels
        )
        print(f"{provider.ort_name}: {len(kernels)} rows")
        for account, lines in disagreements.items():
            print(f"  {len(lines)} disagreements with {account}", *lines, sep="\n    ")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{version}.json").write_text(as_text(KernelTable(onnxruntime=version, providers=providers)))


if __name__ == "__main__":
    main()
