"""Our definition through ``torch.onnx.export`` alone, without any lowering of ours: ``SOURCE FILE [KEY=VALUE ...]``."""

import sys
from unittest.mock import patch

import torch
from torch.export import Dim

from posexport.sources.load import LoadOptions, load
from posexport.spec import SEQUENCE


def main(argument: str, path: str, *settings: str) -> None:
    """An encoder's graph, with batch and length dynamic.

    Terms of attention are operators of ours, which PyTorch's exporter does not know: it says so.
    """
    source = load(argument, LoadOptions(settings=settings))
    roles = {"tokens": torch.zeros, "types": torch.zeros, "mask": torch.ones}
    sample = {spec.name: roles[spec.role](2, 17, dtype=torch.int64) for spec in source.inputs}
    axes = {name: {0: Dim("batch_size"), 1: Dim(SEQUENCE)} for name in sample}
    # without this our nodes stand in the graph, and their functions do not
    with patch("torch.onnx.is_in_onnx_export", return_value=False):
        program = torch.onnx.export(source.module, kwargs=sample, dynamic_shapes=axes, dynamo=True)
    assert program is not None
    program.save(path, external_data=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
