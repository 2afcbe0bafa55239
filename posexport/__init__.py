"""Transformers with any position encoding, from PyTorch to ONNX: right at every length, and proven.

Importing this imports no package: names are imported when they are used.
"""

from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.version import VERSION

if TYPE_CHECKING:
    from posexport.api import (
        audit,
        convert,
        list_available,
        load,
        optimize,
        pipeline,
        report,
        torch_onnx_export,
        verify,
    )
    from posexport.conversion.result import Conversion
    from posexport.inspect.audit.finding import Finding, Findings
    from posexport.inspect.optimize.record import Optimized
    from posexport.proof.report.report import Report
    from posexport.run.generate.config import GenerationConfig
    from posexport.run.session import Session
    from posexport.serve.drop_in.finish import ExportedModel

__version__ = VERSION
__all__ = [
    "Conversion",
    "ExportedModel",
    "Finding",
    "Findings",
    "GenerationConfig",
    "Optimized",
    "PosexportError",
    "Report",
    "Session",
    "__version__",
    "audit",
    "convert",
    "list_available",
    "load",
    "optimize",
    "pipeline",
    "report",
    "torch_onnx_export",
    "verify",
]

_FUNCTIONS = (
    "audit",
    "convert",
    "list_available",
    "load",
    "optimize",
    "pipeline",
    "report",
    "torch_onnx_export",
    "verify",
)
#: what is imported when it is asked for
_LATER = {
    **dict.fromkeys(_FUNCTIONS, "posexport.api"),
    "Conversion": "posexport.conversion.result",
    "ExportedModel": "posexport.serve.drop_in.finish",
    "Finding": "posexport.inspect.audit.finding",
    "Findings": "posexport.inspect.audit.finding",
    "GenerationConfig": "posexport.run.generate.config",
    "Optimized": "posexport.inspect.optimize.record",
    "Report": "posexport.proof.report.report",
    "Session": "posexport.run.session",
}


#: packages that are there after ``import posexport``, without being imported by it
_PACKAGES = ("nn", "testing")


def __getattr__(name: str) -> object:
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"posexport.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'posexport' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
