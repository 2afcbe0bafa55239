"""What leaving padding out of an audio encoder is worth: `python ci/lab/padding_audio.py KEPT DROPPED --per-second N`.

KEPT and DROPPED are bundles of one audio encoder with a mask, KEPT made with `--no-unpad`; N frames or samples are
a second. Batches of rows of random sound; one thread and its CPU time, compared as decoders are (`padding_decoder`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from padding_decoder import Feeds, compare, session

#: seconds of sound of each row of a batch
ROWS = {
    "60% padding": (10, 5, 4, 3, 3, 3, 2, 2),
    "30% padding": (10, 9, 8, 7, 7, 6, 5, 4),
    "no padding, 8 rows": (5,) * 8,
    "no padding, 1 row": (5,),
}


def feeds(graph: onnxruntime.InferenceSession, lengths: Sequence[int]) -> Feeds:
    """Random sound, ``lengths`` frames or samples of it real in the rows, padded on the right with zeros."""
    real = np.arange(max(lengths)) < np.asarray(lengths)[:, None]
    tensors: Feeds = {}
    for value in graph.get_inputs():
        if value.type == "tensor(float)":
            channels = [size for size in value.shape[2:] if isinstance(size, int)]
            sound = np.random.default_rng(0).standard_normal((*real.shape, *channels)).astype(np.float32)
            tensors[value.name] = sound * real.reshape(*real.shape, *[1] * len(channels))
        else:
            tensors[value.name] = real.astype(np.int64)
    return tensors


def main(kept: Path, dropped: Path, per_second: int, seconds: float) -> dict[str, Any]:
    sessions = [session(kept), session(dropped), session(kept)]
    measured: dict[str, Any] = {"onnxruntime": onnxruntime.__version__, "a second": per_second}
    for name, rows in ROWS.items():
        batch = feeds(sessions[0], [row * per_second for row in rows])
        measured[name] = compare(sessions, batch, seconds)
    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path)
    parser.add_argument("dropped", type=Path)
    parser.add_argument("--per-second", type=int, required=True, help="frames or samples of its input")
    parser.add_argument("--seconds", type=float, default=10, help="of each comparison, seven calls at least")
    parser.add_argument("-o", type=Path)
    asked = parser.parse_args()
    text = json.dumps(main(asked.kept, asked.dropped, asked.per_second, asked.seconds), indent=1) + "\n"
    if asked.o is not None:
        asked.o.write_text(text)
    else:
        print(text)
