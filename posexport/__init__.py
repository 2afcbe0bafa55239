"""Transformers with any position encoding, from PyTorch to ONNX: right at every length, and proven.

Importing this imports neither torch nor onnxruntime.
"""

from os import PathLike
from typing import TYPE_CHECKING

from posexport.errors import PosexportError

if TYPE_CHECKING:
    from posexport.runtime.session import Session

__version__ = "0.1.0"
__all__ = ["PosexportError", "__version__", "load"]


def load(directory: str | PathLike[str], *, provider: str = "cpu", threads: int = 0, check: bool = True) -> "Session":
    """Open a bundle, ready to run arrays or texts; see `posexport.runtime.session.load`."""
    from posexport.runtime.session import load as open_bundle

    return open_bundle(directory, provider=provider, threads=threads, check=check)
