"""Optional libraries, and the extras of posexport that install them. Imports none of them.

The base installation runs bundles with any ONNX Runtime package; PyTorch and the rest are extras.
"""

import importlib.util

from posexport.errors import PosexportError

#: import name: what people call the library, and the extra that installs it
LIBRARIES = {
    "torch": ("PyTorch", "export"),
    "onnxscript": ("onnxscript", "export"),
    "onnx_ir": ("onnx-ir", "graph"),
    "onnx_shape_inference": ("onnx-shape-inference", "audit"),
    "onnxruntime": ("ONNX Runtime", "onnxruntime"),
    "matplotlib": ("matplotlib", "plots"),
    "huggingface_hub": ("huggingface_hub", "hub"),
    "transformers": ("transformers", "transformers"),
    "timm": ("timm", "timm"),
    "chronos": ("chronos-forecasting", "chronos"),
    "open_clip": ("open_clip", "open_clip"),
    "PIL": ("Pillow", "images"),
    "soundfile": ("soundfile", "audio"),
    "soxr": ("soxr", "audio"),
    "ray": ("Ray", "ray"),
    "mlserver": ("MLServer", "mlserver"),
    "pyarrow": ("pyarrow", "ray"),
}
#: distributions that all install the import package ``onnxruntime``, over each other
RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-qnn")


def require(purpose: str, *modules: str) -> None:
    """Raise PosexportError with the ``pip install`` command where one of ``modules``, keys of `LIBRARIES`, is missing.

    ``purpose``: the subject of the sentence, for example ``convert``.

    Example:
        require("convert", "torch", "onnxscript", "onnxruntime")
    """
    if absent := [module for module in modules if not is_installed(module)]:
        raise PosexportError(_sentence(purpose, absent))


def explain_missing(err: ModuleNotFoundError, purpose: str) -> str | None:
    """The sentence of `require` for a failed import; None where no extra of posexport brings that module."""
    module = err.name or ""
    return _sentence(purpose, [module]) if module in LIBRARIES and not is_installed(module) else None


def installed_runtimes() -> list[str]:
    """The distributions of `RUNTIMES` that are installed; one is right, more of them overwrite each other's files."""
    return [name for name in RUNTIMES if _has_distribution(name)]


def runtime_conflict() -> str | None:
    """A sentence if several ONNX Runtime packages are installed, with the commands that repair it; otherwise None."""
    names = installed_runtimes()
    if len(names) < 2:
        return None
    return (
        f"{' and '.join(names)} are installed together and overwrite each other's files: "
        f"pip uninstall {' '.join(names)}, then install one of them"
    )


def is_installed(module: str) -> bool:
    """Whether ``module`` can be imported; it is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module without a spec in sys.modules
        return True
    # pip leaves a folder without __init__.py where two packages overwrote each other
    return spec is not None and spec.origin is not None


def _has_distribution(name: str) -> bool:
    import importlib.metadata  # 10 ms, which `posexport --help` need not pay

    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _sentence(purpose: str, absent: list[str]) -> str:
    names = [LIBRARIES[module][0] for module in absent]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    needed = {LIBRARIES[module][1] for module in absent}
    # the extra for conversions brings the one for graphs
    extras = ",".join(sorted(needed - {"graph"} if "export" in needed else needed))
    gpu = " (for CUDA onnxruntime-gpu in place of onnxruntime)" if "onnxruntime" in extras else ""
    return (
        f"{purpose} needs {listed}, which {'is' if len(names) == 1 else 'are'} not installed: "
        f"pip install 'posexport[{extras}]'{gpu}"
    )
