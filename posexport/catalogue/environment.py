"""What a bug report needs of this machine: versions, processor, limits, and which providers load."""

import locale
import os
import platform
import re
from collections.abc import Iterator

import msgspec

from posexport.base.registry import added_by_packages
from posexport.base.system import machine
from posexport.base.system.extras import LIBRARIES, is_installed, runtime_conflict
from posexport.base.system.files import without_folders
from posexport.base.system.threads import affinity, allowed_threads
from posexport.catalogue.stored import catalogue
from posexport.version import VERSION

#: distributions that every installation has
BASE = ("click", "jinja2", "msgspec", "numpy", "onnx", "psutil", "rich", "safetensors", "tokenizers")
#: settings of threads, devices and kernels; nothing else of the environment is read
_VARIABLES = re.compile(r"(OMP|MKL|OPENBLAS|KMP|CUDA|ORT|ONEDNN|DNNL|ATEN|TORCH|POSEXPORT)_\w+|PYTHONUTF8")
#: kinds of objects that packages add (docs/contributing.md)
_KINDS = ("encodings", "families", "lowerings", "providers", "engines", "layouts", "sources", "unread_files")


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """This machine and this installation, without names of users or folders.

    Attributes:
        posexport: version.
        python: implementation and version.
        system: operating system with its release and architecture.
        encoding: of text files that name none.
        processor: its name.
        instructions: vector and matrix instructions; None where the system does not list them.
        logical_cpus: of the machine.
        usable_cpus: those that this process may run on.
        threads: the default of a session, within the limits of a container.
        memory: bytes of the machine.
        memory_limit: bytes that the container allows; None: no limit.
        memory_free: bytes.
        packages: version of each distribution, by name.
        extras: by extra, its libraries that are installed ("name version") or not ("name: not installed").
        providers: by name: "loads", or the reason why not.
        extensions: packages that add encodings, providers and others.
        variables: environment variables about threads, devices and kernels.
        conflict: packages that overwrite each other's files; None: none do.
    """

    posexport: str
    python: str
    system: str
    encoding: str
    processor: str
    instructions: list[str] | None
    logical_cpus: int | None
    usable_cpus: int
    threads: int
    memory: int
    memory_limit: int | None
    memory_free: int
    packages: dict[str, str]
    extras: dict[str, list[str]]
    providers: dict[str, str]
    extensions: list[str]
    variables: dict[str, str]
    conflict: str | None

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self))

    def to_text(self) -> str:
        """One fact a line, for a bug report."""
        rows = list(self._rows())
        column = max(len(name) for name, _ in rows) + 2
        return "\n".join(f"{name.ljust(column)}{value}" for name, value in rows) + "\n"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "posexport", self.posexport
        yield "Python", f"{self.python}, text files in {self.encoding}"
        yield "system", self.system
        yield "processor", self.processor
        yield "", "instructions not listed here" if self.instructions is None else " ".join(self.instructions)
        yield "CPUs", f"{self.logical_cpus}, usable {self.usable_cpus}, threads of a session {self.threads}"
        limit = "no limit" if self.memory_limit is None else f"limit {machine.readable(self.memory_limit)}"
        yield "memory", f"{machine.readable(self.memory)}, {limit}, free {machine.readable(self.memory_free)}"
        yield "packages", ", ".join(f"{name} {version}" for name, version in self.packages.items())
        for extra, libraries in self.extras.items():
            yield f"extra {extra}", ", ".join(libraries)
        for name, state in self.providers.items():
            yield f"provider {name}", state
        for package in self.extensions:
            yield "extension", package
        for name, value in self.variables.items():
            yield name, value
        if self.conflict is not None:
            yield "warning", self.conflict


def environment() -> Environment:
    """Looks at this machine and this installation; opens a tiny session on every provider."""
    return Environment(
        posexport=VERSION,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=platform.platform(),
        encoding=locale.getpreferredencoding(False),
        processor=machine.processor(),
        instructions=machine.instructions(),
        logical_cpus=os.cpu_count(),
        usable_cpus=affinity(),
        threads=allowed_threads(),
        memory=machine.total(),
        memory_limit=machine.memory_limit(),
        memory_free=machine.available(),
        packages={name: _version(name) for name in BASE},
        extras=_extras(),
        providers={entry["name"]: without_folders(entry["what"], None) for entry in catalogue("providers")},
        extensions=sorted({package for kind in _KINDS for package in added_by_packages(kind).values()}),
        variables={
            name: without_folders(value, None)
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name)
        },
        conflict=runtime_conflict(),
    )


def _extras() -> dict[str, list[str]]:
    """The libraries of every extra that `LIBRARIES` names, with their versions."""
    from importlib.metadata import packages_distributions

    distributions = packages_distributions()
    extras: dict[str, list[str]] = {}
    for module, (name, extra) in LIBRARIES.items():
        installed = sorted(set(distributions.get(module, ()))) if is_installed(module) else []
        versions = [f"{distribution} {_version(distribution)}" for distribution in installed]
        extras.setdefault(extra, []).extend(versions or [f"{name}: not installed"])
    return extras


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
