"""A checkpoint's transformers class through ``torch.onnx.export``, as its users call it: ``CHECKPOINT FILE``.

No module of posexport is imported: the exported module and the exporter are other people's.
"""

import inspect
import sys

import torch

from ci.lab.rivals.exporters.loading import load


def main(checkpoint: str, path: str) -> None:
    """Writes an encoder's graph; its inputs [batch, sequence] are those of a tokenizer, both axes dynamic."""
    model = load(checkpoint)
    accepted = inspect.signature(model.forward).parameters
    filled = {"input_ids": torch.ones, "attention_mask": torch.ones, "token_type_ids": torch.zeros}
    inputs = {name: fill(2, 17, dtype=torch.int64) for name, fill in filled.items() if name in accepted}
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    torch.onnx.export(model, (), path, kwargs=inputs, dynamic_shapes=axes, dynamo=True)


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
