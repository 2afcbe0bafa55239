"""Run a bundle twice without PyTorch: by ONNX Runtime alone, and by posexport's session; the outputs are the same.

Usage: python examples/run_without_torch.py [BUNDLE]
"""

import sys

import numpy as np
import onnxruntime

import posexport


def main(bundle: str = "minilm") -> None:
    session = posexport.load(bundle)
    arrays = session.tokenize(["a text", "another, longer text"])
    checked = session.run(arrays)

    plain = onnxruntime.InferenceSession(f"{bundle}/model.onnx", providers=["CPUExecutionProvider"])
    outputs = plain.run(None, arrays)

    for spec, output in zip(plain.get_outputs(), outputs, strict=True):
        print(f"{spec.name} {list(output.shape)}: max difference {np.abs(output - checked[spec.name]).max():.1e}")
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
