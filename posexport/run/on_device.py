"""Small graphs that read and write tensors on the device, so that these are not copied to memory and back."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.targets.providers import HOST
from posexport.run.ort_values import run_bound
from posexport.run.providers import make_session

if TYPE_CHECKING:
    from onnxruntime import OrtValue


class GatherRows:
    """Gathers rows of a tensor on the device."""

    def __init__(self, provider: str, dtype: str, axis: int) -> None:
        import onnx.parser

        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> rows ({dtype}[] x, int64[n] rows) => '
            f"({dtype}[] y) {{y = Gather <axis = {axis}> (x, rows)}}"
        )
        self._session = make_session(model.SerializeToString(), provider=provider)

    def __call__(self, value: "OrtValue", index: NDArray[np.intp], device: str) -> "OrtValue":
        (gathered,) = run_bound(self._session, {"rows": index.astype(np.int64)}, {"x": value}, {"y": device})
        return gathered


class LastToken:
    """Selects the logits of the last token on the device, so that other logits of a prefill are not copied."""

    def __init__(self, provider: str, dtype: str) -> None:
        import onnx.parser

        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> last ({dtype}[b, t, v] x) => (float[b, v] y) '
            "<int64 place = {-1}> {z = Gather <axis = 1> (x, place) y = Cast <to = 1> (z)}"
        )
        self._session = make_session(model.SerializeToString(), provider=provider)

    def __call__(self, logits: "OrtValue") -> NDArray[Any]:
        """[B, T, V] on the device to [B, V] in memory."""
        (last,) = run_bound(self._session, {}, {"x": logits}, {"y": HOST})
        last_BV: NDArray[Any] = last.numpy().copy()
        return last_BV
