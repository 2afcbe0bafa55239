"""A checkpoint in transformers' own class, for exporters that are called from Python.

Imports nothing of posexport.
"""

import sys
from typing import Any

import torch
import transformers


def load(checkpoint: str) -> Any:
    """The class that the checkpoint names, float32, in inference mode.

    Tensors that this class does not read are named in a line ``remark: ...`` on stdout, which the benchmark records
    (`ci.lab.bench_suites.recipes.make`): such a model computes something else.
    """
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    cls = getattr(transformers, config.architectures[0])
    model, report = cls.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    unread = sorted(report["unexpected_keys"])
    if unread:
        others = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        sys.stdout.write(f"\nremark: transformers {transformers.__version__} does not read {unread[0]}{others}\n")
    return model.eval()
