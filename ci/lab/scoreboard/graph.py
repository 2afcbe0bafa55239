"""An ONNX file in ONNX Runtime, with inputs and outputs by the names of transformers."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

#: keys and values of layers, or states, before and after a call: the same name for both
_CACHE = re.compile(r"^(?:past_key_values|present|past(?!_values$)|cache_params)[._]")
_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
}  # fmt: skip


class OutsideError(Exception):
    """A point has another size than the file declares."""


class RunError(Exception):
    """ONNX Runtime does not run the file."""


class UnknownError(Exception):
    """The judge has no value for an input, or no reference for an output: no verdict on the file."""


def standard(name: str, renames: Mapping[str, str]) -> str:
    """The name of an input or output that the judge knows; of caches ``cache.`` and what tells one from another."""
    name = re.sub(r"^(input|output)\.", "", name)
    return _CACHE.sub("cache.", renames.get(name, name))


class File:
    """A session; called with arrays by standard names, and reads those that it has inputs for."""

    def __init__(self, path: Path, renames: Mapping[str, str] | None = None) -> None:
        self.path = path
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {standard(value.name, renames or {}): value for value in self._session.get_inputs()}
        self.outputs = [standard(value.name, renames or {}) for value in self._session.get_outputs()]

    @property
    def caches(self) -> bool:
        """True for a graph with a KV cache or states as inputs."""
        return any(name.startswith("cache.") for name in self.inputs)

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by standard names. A missing cache is empty.

        Raises:
            OutsideError: an array has another size than the file declares.
            UnknownError: an input is none that the judge knows.
            RunError: ONNX Runtime does not run it.
        """
        fed: dict[str, np.ndarray] = {}
        batch = len(next(x for name, x in arrays.items() if name != "cache_position"))
        for name, value in self.inputs.items():
            dtype = _TYPES[value.type]
            if name in arrays:
                array: np.ndarray = np.ascontiguousarray(arrays[name], dtype=dtype)
            elif name.startswith("cache."):
                array = np.zeros(self._empty(name, value.shape, batch, arrays), dtype)
            else:
                raise UnknownError(f"the judge has nothing for the input {value.name}")
            declared = value.shape
            if len(declared) == array.ndim:
                fixed = [n for n, size in zip(declared, array.shape, strict=True) if isinstance(n, int) and n != size]
                if fixed:
                    raise OutsideError(f"{value.name} is declared {declared}")
            fed[value.name] = array
        try:
            outputs = self._session.run(None, fed)
        except Exception as err:
            raise RunError(f"{type(err).__name__}: {err}") from err
        return dict(zip(self.outputs, outputs, strict=True))

    @staticmethod
    def _empty(name: str, declared: list[int | str | None], batch: int, arrays: Mapping[str, np.ndarray]) -> list[int]:
        """The shape before the first call: no tokens; of cross-attention, the encoder's."""
        encoded = arrays["encoder_hidden_states"].shape[1] if "encoder_hidden_states" in arrays else 0
        tokens = encoded if re.search(r"\b(encoder|cross)\b", name) else 0
        sizes = [size if isinstance(size, int) else tokens for size in declared]
        return [declared[0] if isinstance(declared[0], int) else batch, *sizes[1:]]
