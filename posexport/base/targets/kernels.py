"""Which operators an execution provider computes itself, and in which element types: a table per ONNX Runtime version.

``ci/kernels/run`` writes a table from the registries of an installed wheel; a lowering can refuse by element type
without a GPU. Operators that no provider has a kernel for may still run: by their ONNX function, or on the CPU.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path

import msgspec

from posexport.base.system.extras import installed_runtimes
from posexport.base.targets.dtypes import DType

_FOLDER = Path(__file__).parent / "kernel_tables"
#: the table of providers whose registries were not read, by ONNX Runtime's documents (`ci/kernels/listed.py`)
LISTS = "listed"


class Kernels(msgspec.Struct, array_like=True, frozen=True):
    """Kernels of one provider for one operator.

    Attributes:
        since, until: the first and the last version of the operator that they compute; ``until`` None: ``since`` alone,
            and with it every opset up to the operator's next version.
        dtypes: ONNX Runtime's names of the element types of the first input; of the first output where that input is
            a condition, an index or a shape. Empty in a published list without types.
    """

    operator: str
    domain: str
    since: int
    until: int | None
    dtypes: tuple[str, ...]

    def computes(self, version: int) -> bool:
        """Whether nodes of that version of the operator are computed, as ONNX Runtime decides it."""
        return version == self.since or (self.until is not None and self.since < version <= self.until)


class ProviderKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The kernels of a provider.

    Attributes:
        source: where the rows were read.
        disagreements: other lists of the same kernels, by name, each with what it says differently from the rows.
        plugin: the plug-in that has the provider, or ONNX Runtime in a published list, and its version; empty for a
            provider of the wheel that the table is of.
    """

    source: str
    disagreements: dict[str, list[str]]
    kernels: list[Kernels]
    plugin: str = ""


class KernelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All kernels of one ONNX Runtime, by its names of providers."""

    onnxruntime: str
    providers: dict[str, ProviderKernels]


def has_kernel(provider: str, operator: str, domain: str, opset: int, dtype: DType) -> bool:
    """Whether ``provider``, by ONNX Runtime's name, has a kernel for ``operator`` of ``domain`` at ``opset``.

    By the table of the installed ONNX Runtime, or of the version before it that has one for the provider. False for a
    provider that no table has.
    """
    return any(dtype.ort in kernel.dtypes for kernel in rows(provider, operator, domain, opset))


def rows(provider: str, operator: str, domain: str, opset: int) -> list[Kernels]:
    """The kernels of ``provider`` for ``operator`` of ``domain`` at ``opset``, in any type."""
    of_operator = _by_operator(table_of(provider)).get((provider, domain, operator), [])
    version = _since(operator, domain, opset)
    return [kernel for kernel in of_operator if kernel.computes(version)]


def _since(operator: str, domain: str, opset: int) -> int:
    """The version of ``operator`` in ``opset``; of operators that ONNX does not have there is one version.

    ONNX Runtime has some of its own in ONNX's domain, at version 1: SimplifiedLayerNormalization.
    """
    import onnx.defs

    try:
        return int(onnx.defs.get_schema(operator, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return opset if domain else 1


def is_function(operator: str, domain: str, opset: int) -> bool:
    """Whether ONNX defines the operator by others; of com.microsoft, which no installed package describes: no."""
    import onnx.defs

    try:
        schema = onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:
        return False
    # both are properties of the extension module, which ONNX's type annotations leave out
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


@cache
def installed_version() -> str | None:
    """The version of the installed ONNX Runtime; None where there is none."""
    import importlib.metadata  # 10 ms, which `posexport --help` need not pay

    return next((importlib.metadata.version(name) for name in installed_runtimes()), None)


def versions() -> list[str]:
    """The versions of ONNX Runtime that there is a table of, in order."""
    return sorted((path.stem for path in _FOLDER.glob("*.*.*.json")), key=as_numbers)


def version_for(version: str | None) -> str:
    """The newest version with a table that is not newer than ``version``, else the oldest; for None the newest."""
    known = versions()
    fitting = [name for name in known if version is None or as_numbers(name) <= as_numbers(version)]
    return (fitting or known[:1])[-1]


@cache
def table_of(provider: str) -> str:
    """The version of ONNX Runtime with the kernel table of ``provider``, chosen as `version_for` does.

    A wheel has the kernels of the providers in it: of CUDA there is the table of onnxruntime-gpu, which appears later
    than the onnxruntime of that version. `LISTS` is of no version.
    """
    if provider in load_table(LISTS).providers:
        return LISTS
    installed = installed_version()
    having = [name for name in versions() if provider in load_table(name).providers]
    fitting = [name for name in having if installed is None or as_numbers(name) <= as_numbers(installed)]
    return ([*having[:1], *fitting] or [version_for(installed)])[-1]


def has_table(provider: str) -> bool:
    """Whether there is a table of the provider's kernels."""
    return provider in load_table(table_of(provider)).providers


@cache
def load_table(version: str) -> KernelTable:
    return msgspec.json.decode((_FOLDER / f"{version}.json").read_bytes(), type=KernelTable)


@cache
def _by_operator(version: str) -> dict[tuple[str, str, str], list[Kernels]]:
    """The kernels of a table by provider, domain and operator."""
    kernels = defaultdict(list)
    for provider, table in load_table(version).providers.items():
        for kernel in table.kernels:
            kernels[provider, kernel.domain, kernel.operator].append(kernel)
    return dict(kernels)


def as_numbers(version: str) -> tuple[int, ...]:
    """``1.31.1`` and ``1.32.0.dev2026`` as comparable tuples."""
    return tuple(int(number) for number in version.split(".")[:3])
