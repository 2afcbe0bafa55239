"""The machine, the versions and the commit that figures belong to."""

import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess


@functools.cache
def device() -> dict[str, str]:
    """Name, driver and memory of the card, from the driver's own tool; empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return dict(zip(("name", "driver", "memory"), said[0].split(", "), strict=True)) if said else {}


@functools.cache
def versions() -> dict[str, str]:
    """What takes part, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def commit() -> str:
    """The commit of the checkout, or what COMMIT says of one that came without git, or that it is not known."""
    if given := os.environ.get("COMMIT"):
        return given
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a git checkout"
