"""Computes tests/golden_activations.json anew: transformers' activations in float64 at a few numbers.

Run it where transformers 5 is (ci/lab/embedders/requirements.txt has it); posexport is not imported:

    .venv-embedders/bin/python ci/golden/activations.py tests/golden_activations.json
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers.activations import ACT2CLS, ACT2FN

NUMBERS = [-60.0, -10.5, -6.5, -3.25, -1.0, -0.3, 0.0, 0.2, 0.7071, 1.0, 2.75, 5.9, 6.1, 9.5, 12.0, 60.0]


def main(path: Path) -> None:
    x = torch.tensor(NUMBERS, dtype=torch.float64)
    values = {}
    for name in sorted(ACT2CLS):
        function = ACT2FN[name]
        learns = isinstance(function, torch.nn.Module) and any(True for _ in function.parameters())
        values[name] = None if learns else function(x).tolist()
    content = {"transformers": transformers.__version__, "numbers": NUMBERS, "values": values}
    path.write_text(json.dumps(content, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
