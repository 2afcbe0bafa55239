"""Writes tests/golden: tiny checkpoints of transformers and what it computes with them.

Run by `ci/golden/make`, which knows the versions, in an environment of its own. One module a topic; `common` says what
the files hold, `five` which of them transformers 5 writes otherwise.
"""

import json
import shutil
import sys
from pathlib import Path

import audio
import bert
import differs
import five
import gpt
import llama
import long
import seq2seq
import text
import torch
import transformers
import vision
import windowed
from common import FIVE

#: bytes of one file, and of all
LIMIT, TOTAL = 100_000, 8_000_000


def main(version: str, root: Path, only: list[str]) -> None:
    """All checkpoints of the version, or those whose names are in ``only``."""
    if transformers.__version__ != version:
        sys.exit(f"this needs transformers {version}, found {transformers.__version__}: run ci/golden/make")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    plan = {
        name: make
        for topic in (bert, text, long, vision, windowed, audio, llama, gpt, seq2seq, differs)
        for name, make in topic.checkpoints().items()
    }
    if FIVE:
        plan = five.checkpoints(plan)
    if unknown := set(only) - set(plan):
        sys.exit(f"unknown checkpoints: {', '.join(sorted(unknown))}; known: {', '.join(plan)}")
    for name, make in plan.items():
        if only and name not in only:
            continue
        target = root / name
        shutil.rmtree(target, ignore_errors=True)
        make(target)
        sizes = {path.name: path.stat().st_size for path in target.iterdir()}
        assert max(sizes.values()) <= LIMIT, sizes
        print(f"{name}: {json.dumps(sizes)}")
    total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert total < TOTAL, total
    print(f"{len(plan)} checkpoints, {total} bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
