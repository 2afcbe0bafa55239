"""A checkpoint through optimum and ONNX Runtime's dynamic quantizer: ``CHECKPOINT DIRECTORY tensor|channel``.

Writes model.onnx, with a scale for each weight, or for each channel of it.
"""

import sys
import tempfile
from pathlib import Path

from onnxruntime.quantization import QuantType, quantize_dynamic
from optimum.exporters.onnx import main_export


def main(checkpoint: str, directory: str, scales: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        main_export(checkpoint, folder, task="feature-extraction", library_name="transformers", do_validation=False)
        path = Path(directory) / "model.onnx"
        float32 = Path(folder) / "model.onnx"
        quantize_dynamic(float32, path, weight_type=QuantType.QInt8, per_channel=scales == "channel")


if __name__ == "__main__":
    main(*sys.argv[1:])
