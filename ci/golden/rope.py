"""Writes tests/golden_rope.json: rotary frequencies and attention factors as transformers computes them.

Run it in both environments of `ci/golden/make`; posexport is not imported:

    .venv-golden/bin/python ci/golden/rope.py tests/golden_rope.json
    .venv-golden-5/bin/python ci/golden/rope.py tests/golden_rope_v5.json

4.57.6 computes `CASES` and `CHANGED`, 5.23.0 only these, which the two read differently: they say which one they are
written for.

A list of cases: ``config`` (what a config.json holds), ``head_size``, and under ``lengths``, for every length of the
input (0: none is given), ``inv_freq`` and ``attention_factor``. Every case is a fresh configuration: nothing is
remembered between lengths.
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

VERSIONS = ("4.57.6", "5.23.0")
LONG = {"short_factor": [1.0, 1.05, 1.5, 2.25, 3.0, 3.5], "long_factor": [1.0, 1.25, 2.5, 9.0, 31.5, 64.0]}
#: the table, what stands beside it, the head's size, lengths
CASES: list[tuple[dict[str, Any] | None, dict[str, Any], int, list[int]]] = [
    (None, {"rope_theta": 10000.0}, 12, [0]),
    (None, {"rope_theta": 500.0, "partial_rotary_factor": 0.3}, 34, [0]),
    ({"type": "linear", "factor": 4.0}, {"rope_theta": 10000.0}, 20, [0]),
    (
        {"rope_type": "dynamic", "factor": 2.5},
        {"rope_theta": 10000.0, "max_position_embeddings": 300},
        20,
        [0, 299, 300, 301, 1000],
    ),
    (
        {"rope_type": "dynamic", "factor": 8.0},
        {"rope_theta": 1e6, "max_position_embeddings": 64, "partial_rotary_factor": 0.5},
        24,
        [65, 4097],
    ),
    ({"rope_type": "yarn", "factor": 4.0}, {"rope_theta": 10000.0, "max_position_embeddings": 2048}, 64, [0]),
    (
        {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "finetuned": True},
        {"rope_theta": 10000.0, "max_position_embeddings": 65536},
        128,
        [0],
    ),
    (
        {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
        {"rope_theta": 150000.0, "max_position_embeddings": 131072},
        64,
        [0],
    ),
    (
        {
            "type": "yarn",
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "beta_fast": 20,
            "beta_slow": 2,
        },
        {"rope_theta": 10000.0, "max_position_embeddings": 163840},
        64,
        [0],
    ),
    (
        {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5},
        {"rope_theta": 500.0, "max_position_embeddings": 700, "partial_rotary_factor": 0.25},
        96,
        [0],
    ),
    ({"rope_type": "yarn", "factor": 4.0}, {"rope_theta": 10000.0, "max_position_embeddings": 40}, 20, [0]),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_theta": 500000.0, "max_position_embeddings": 131072},
        128,
        [0],
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 9.0,
            "original_max_position_embeddings": 300,
        },
        {"rope_theta": 1000.0, "max_position_embeddings": 9600},
        44,
        [0],
    ),
    (
        {"type": "longrope", **LONG},
        {"rope_theta": 10000.0, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
        12,
        [0, 4096, 4097],
    ),
    (
        {"rope_type": "longrope", "factor": 16.0, **LONG},
        {"rope_theta": 10000.0, "max_position_embeddings": 64},
        12,
        [64, 65],
    ),
    (
        {"rope_type": "longrope", "factor": 16.0, "attention_factor": 1.25, **LONG},
        {"rope_theta": 500.0, "max_position_embeddings": 64, "partial_rotary_factor": 0.75},
        16,
        [63, 1000],
    ),
]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
#: the table, what stands beside it: each means one thing to transformers 4 and another to 5
CHANGED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # an original length in the table, in both places, beside it
    ({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16, **LONG}, {}),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48},
        {"original_max_position_embeddings": 16},
    ),
    ({"rope_type": "yarn", "factor": 4.0}, {"original_max_position_embeddings": 16}),
    (
        {**LLAMA3, "original_max_position_embeddings": 48},
        {"original_max_position_embeddings": 16},
    ),
    # a factor beside two lengths
    ({"rope_type": "longrope", "factor": 2.0, **LONG}, {"original_max_position_embeddings": 16}),
    (
        {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 48, **LONG},
        {"original_max_position_embeddings": 16},
    ),
    # a base and a share in the table
    ({"rope_type": "linear", "factor": 2.0, "rope_theta": 70.0}, {}),
    ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}),
]


def case(table: dict[str, Any] | None, beside: dict[str, Any], head_size: int, lengths: list[int]) -> dict[str, Any]:
    """One case, computed."""
    given = {**beside, **({} if table is None else {"rope_scaling": table})}
    kind = "default" if table is None else table.get("rope_type", table.get("type"))
    found = {}
    for length in lengths:
        config = LlamaConfig(
            hidden_size=5 * head_size, num_attention_heads=5, head_dim=head_size, **copy.deepcopy(given)
        )
        inv_freq, attention = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length or None)
        found[str(length)] = {
            "inv_freq": [float(f"{value:.9g}") for value in inv_freq.tolist()],
            "attention_factor": float(attention),
        }
    return {"config": given, "head_size": head_size, "lengths": found}


def main() -> None:
    """Writes the file that the command line names."""
    if transformers.__version__ not in VERSIONS:
        raise SystemExit(f"transformers {' or '.join(VERSIONS)} is needed, this is {transformers.__version__}")
    logging.disable(logging.WARNING)
    cases = list(CASES) if transformers.__version__ == VERSIONS[0] else []
    for table, beside in CHANGED:
        common = {"transformers_version": transformers.__version__, "rope_theta": 1000.0, "max_position_embeddings": 64}
        cases.append((table, common | beside, 12, [16, 17, 48, 49, 65]))
    rows = [json.dumps(case(*given)) for given in cases]
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
