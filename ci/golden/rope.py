"""Computes tests/golden_rope.json anew: rotary frequencies and attention factors as transformers computes them.

The file is its own table: ``config`` (what a config.json holds), ``head_size`` and the lengths of the input (0: none is
given) are read from it, ``inv_freq`` and ``attention_factor`` of every length are written. A new case is one with empty
objects there. Cases that 4 and 5 read differently say which one they are written for. posexport is not imported:

    .venv-golden/bin/python ci/golden/rope.py tests/golden_rope.json
    .venv-golden-5/bin/python ci/golden/rope.py tests/golden_rope_v5.json

Every length is given to a fresh configuration: nothing is remembered.
"""

import copy
import json
import logging
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VERSIONS = {"golden_rope.json": "4.57.6", "golden_rope_v5.json": "5.23.0"}


def computed(config: dict[str, Any], head_size: int, length: int) -> dict[str, Any]:
    """What is stored of one case at one length."""
    made = LlamaConfig(hidden_size=5 * head_size, num_attention_heads=5, head_dim=head_size, **copy.deepcopy(config))
    table = config.get("rope_scaling", {})
    kind = table.get("rope_type", table.get("type", "default"))
    inv_freq, attention = ROPE_INIT_FUNCTIONS[kind](made, "cpu", seq_len=length or None)
    return {"inv_freq": [float(f"{value:.9g}") for value in inv_freq.tolist()], "attention_factor": float(attention)}


def main(path: Path) -> None:
    """Write the file anew."""
    if transformers.__version__ != VERSIONS[path.name]:
        raise SystemExit(f"transformers {VERSIONS[path.name]} is needed, this is {transformers.__version__}")
    logging.disable(logging.WARNING)
    cases = json.loads(path.read_text())
    for case in cases:
        case["lengths"] = {
            length: computed(case["config"], case["head_size"], int(length)) for length in case["lengths"]
        }
    path.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
