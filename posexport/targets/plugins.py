"""Plug-in execution providers: wheels with one library each, which ONNX Runtime registers at run time."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from posexport.errors import PosexportError
from posexport.system.extras import is_installed

if TYPE_CHECKING:
    from onnxruntime import OrtEpDevice

    from posexport.targets.providers import Provider

#: the first ONNX Runtime with SessionOptions.add_provider_for_devices
_SINCE = "1.24"
#: the error passed to `Provider.load_failure` if the provider lists no device
_NO_DEVICE = "no device"
#: by module: a library is registered once in a process
_registered: set[str] = set()


def is_plugin(provider: "Provider") -> bool:
    """Whether the provider's plug-in is installed."""
    return bool(provider.plugin) and is_installed(provider.plugin)


def devices(provider: "Provider") -> "list[OrtEpDevice]":
    """The first device of an installed plug-in, as a list for ``add_provider_for_devices``.

    Raises PosexportError if the provider has no device here, or the installed ONNX Runtime takes no plug-ins.
    """
    import onnxruntime

    if not hasattr(onnxruntime.SessionOptions, "add_provider_for_devices"):
        raise PosexportError(
            f"{provider.ort_name} was asked for: its plug-in {provider.package} needs onnxruntime {_SINCE} or newer, "
            f"{onnxruntime.__version__} is installed; upgrade it"
        )
    if provider.plugin not in _registered:
        module: Any = importlib.import_module(provider.plugin)
        try:
            onnxruntime.register_execution_provider_library(provider.ort_name, module.get_library_path())
        except Exception as err:  # onnxruntime's exceptions share no base class but Exception
            raise PosexportError(f"{provider.ort_name} was asked for and did not load: {err}") from err
        _registered.add(provider.plugin)
    available = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider.ort_name]
    if not available:
        reason = provider.load_failure(_NO_DEVICE) or "it finds nothing to compute on"
        raise PosexportError(f"{provider.ort_name} was asked for and did not load: {reason}")
    return available[:1]


def no_device(needed: str) -> Callable[[str], str | None]:
    """The ``load_failure`` of a plug-in provider without a device: names the hardware it needs."""

    def reason(error: str) -> str | None:
        return f"it finds no device here; it needs {needed}" if error == _NO_DEVICE else None

    return reason
