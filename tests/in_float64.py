"""A bundle's graph in ONNX Runtime against its module in float64, at lengths and paddings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from torch import nn

from tests.tolerances import agree


def is_the_module(bundle: Path, module: nn.Module, vocab: int, lengths: Sequence[int]) -> None:
    """Compare ``forward(input_ids, attention_mask)``: batches of three, whole, padded on the left and on the right.

    Padded tokens of the last row and the first one do not count; ``module`` is in float64 afterwards.
    """
    session, wide = ort.InferenceSession(bundle / "model.onnx"), module.double()
    for length in lengths:
        ids = torch.randint(vocab, (3, length), generator=torch.Generator().manual_seed(length))
        for first, last in {(0, 0), (length // 3, 0), (0, length // 2), (length // 2, length // 3)}:
            mask = torch.ones_like(ids)
            mask[0, :first], mask[2, length - last :] = 0, 0
            (got,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
            with torch.no_grad():
                expected = wide(ids, mask)
            agree(got[mask.numpy() != 0], expected[mask != 0], "model in float32", np.float32)
