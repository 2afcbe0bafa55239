"""Stand-ins for the CUDA libraries that the installed onnxruntime-gpu asks for, compiled with ``cc``.

What is asked for is read from the provider's library: what it links, and what it looks up by name. ``stub/`` has the
functions whose answers matter; all others record their names and return 0.
"""

import contextlib
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent / "stub"
CACHE = Path(__file__).parents[3] / ".cache" / "cuda-dry"
#: of cudaDeviceProp, by the major version of CUDA; the fields in cudart_device.c are those of 13
_DEVICE_PROP_SIZE = {13: 1008}
#: not linked but loaded by name: how the names of their functions begin, which are strings of the provider
_BY_NAME = {"libcudnn.so.9": "cudnn", "libcufft.so.12": "cufft"}
#: linked without versions of symbols, as NVIDIA's are
_UNVERSIONED = ("libcuda.so.1", *_BY_NAME)
_DRIVER = "libcuda.so.1"
_SYSTEM = ("GLIBC", "GCC", "CXXABI")


def missing() -> str | None:
    """What a dry run needs and this machine does not have, in one sentence; None where nothing is missing."""
    for tool in ("cc", "readelf", "nm"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; install a C compiler and binutils"
    if not provider().exists():
        return "the installed onnxruntime has no CUDA provider; install onnxruntime-gpu in its place"
    cuda = _cuda_version()
    if cuda not in _DEVICE_PROP_SIZE:
        return f"the installed onnxruntime-gpu is built for CUDA {cuda}, and the stand-ins are those of CUDA 13"
    if find_spec("nvidia") is not None:
        return "NVIDIA's wheels are installed and would be loaded, not the stand-ins; take PyTorch's build for the CPU"
    return None


def provider() -> Path:
    """The library of ONNX Runtime's CUDA provider, where onnxruntime-gpu would have it."""
    spec = find_spec("onnxruntime")
    return Path(spec.origin if spec and spec.origin else ".").parent / "capi" / "libonnxruntime_providers_cuda.so"


def libraries() -> Path:
    """The folder of the stand-ins, made if these sources and this wheel have none yet."""
    digest = hashlib.sha256(importlib.metadata.version("onnxruntime-gpu").encode())
    for source in sorted([Path(__file__), *SOURCES.iterdir()]):
        digest.update(source.read_bytes())
    folder = CACHE / "lib" / digest.hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # tests in several processes may make them at the same time, and read none that is half written
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            made = Path(name) / folder.name
            made.mkdir()
            _build(made)
            if not folder.exists():
                with contextlib.suppress(OSError):  # another process was first
                    made.rename(folder)
    return folder


def _build(folder: Path) -> None:
    wanted = _wanted()
    cudart = next(name for name in wanted if name.startswith("libcudart"))
    flags = ["-O1", "-w", "-fPIC", "-shared", f"-DDEVICE_PROP_SIZE={_DEVICE_PROP_SIZE[_cuda_version()]}"]
    for name in sorted(wanted, key=lambda name: name != cudart):  # the others record in it
        part = name.removeprefix("lib").partition(".")[0]
        sources = sorted([*SOURCES.glob(f"{part}.c"), *SOURCES.glob(f"{part}_*.c")])
        rest = folder / f"{part}_rest.c"
        rest.write_text(_rest(wanted[name] - _defined(sources, folder)))
        script = folder / f"{part}.map"
        script.write_text(f"{name} {{ global: *; }};\n")
        versioned = [] if name in _UNVERSIONED else [f"-Wl,--version-script={script}"]
        others = [] if name == cudart else [folder / cudart, "-Wl,-rpath,$ORIGIN"]
        links = [f"-Wl,-soname,{name}", *versioned, *others, "-lpthread"]
        subprocess.run(["cc", *flags, "-o", folder / name, *sources, rest, *links], check=True)


def _wanted() -> Mapping[str, set[str]]:
    """By library, the functions that the provider asks for."""
    library = provider()
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for name in _linked():
        wanted[name]
    for symbol in re.findall(r"^ +U (\S+)$", _said("nm", "-D", "--undefined-only", library), re.MULTILINE):
        name, _, version = symbol.partition("@")
        if not version.startswith(_SYSTEM) and name != "Provider_GetHost":
            wanted[version or _DRIVER].add(name)
    spelled = set(re.findall(rb"(?<![A-Za-z0-9_])cu(?:dnn|fft)[A-Z][A-Za-z0-9_]+(?=\0)", library.read_bytes()))
    for name, prefix in _BY_NAME.items():
        wanted[name] |= {s.decode() for s in spelled if s.startswith(prefix.encode()) and not s.endswith(b"_t")}
    return wanted


def _linked() -> list[str]:
    """CUDA's libraries that the provider names as needed."""
    return re.findall(r"NEEDED.*\[(libcu.*)\]", _said("readelf", "-d", provider()))


def _cuda_version() -> int:
    return int(next(name for name in _linked() if name.startswith("libcudart")).rpartition(".")[2])


def _defined(sources: list[Path], folder: Path) -> set[str]:
    """The functions that the sources have."""
    found: set[str] = set()
    for source in sources:
        plain = folder / f"{source.stem}.o"
        size = f"-DDEVICE_PROP_SIZE={_DEVICE_PROP_SIZE[_cuda_version()]}"
        subprocess.run(["cc", "-w", size, "-c", "-o", plain, source], check=True)
        found |= set(re.findall(r"^\S+ T (\S+)$", _said("nm", "--defined-only", plain), re.MULTILINE))
    return found


def _rest(symbols: set[str]) -> str:
    """C for functions that only say that they were called."""
    head = "void dryrun_record(const char*, const char*, const long*, int);\n"
    body = 'int {0}(void) {{ long n = 0; dryrun_record("call", "{0}", &n, 1); return 0; }}\n'
    return head + "".join(body.format(symbol) for symbol in sorted(symbols))


def _said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
