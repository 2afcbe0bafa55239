"""Attention in inference mode, some queries at a time, and what a proof takes: memory grows with the length."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from posexport.nn import attention
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.sources import builtin
from tests.small import shared
from tests.tolerances import agree

LENGTH = 23


def text_models() -> list[str]:
    return [name for name in builtin.models() if name.startswith(("encoder-", "decoder-"))]


@pytest.mark.parametrize("name", text_models())
def test_some_queries_at_a_time_give_the_same(name, monkeypatch):
    """Every operator gets its queries by their positions, so that any of them stand for themselves."""
    source = builtin.builtin_source(name, task=None, settings_given=shared(name))
    far = LENGTH + 4 if name.startswith("encoder-decoder-") else None
    feeds = draw(GridPoint(batch=2, length=LENGTH, padding="left", encoder_length=far), source.inputs)
    module = source.module.double()
    tensors = {key: torch.from_numpy(x) for key, x in feeds.items()}
    tensors = {key: x.double() if x.is_floating_point() else x for key, x in tensors.items()}
    lengths, formula = [], attention._formula
    monkeypatch.setattr(attention, "_formula", lambda x: lengths.append(x.q_BHTD.shape[2]) or formula(x))
    monkeypatch.setattr(attention, "_MOST_SCORES", 2 * 5 * LENGTH)  # five queries of a head of two rows
    with torch.no_grad():
        whole = module(**tensors)
    assert LENGTH in lengths, "only inference mode says that nothing is learned and nothing is traced"
    lengths.clear()
    with torch.inference_mode():
        in_tiles = module(**tensors)
    assert 0 < max(lengths) < LENGTH
    for one, other in zip(whole, in_tiles, strict=True):
        agree(one, other, "model", np.float64)


@pytest.mark.all
@pytest.mark.parametrize("checkpoint", ["t5-encodermodel", "t5-forconditionalgeneration", "modernbert-formaskedlm"])
def test_a_conversion_takes_less_than_700_mb(checkpoint, tmp_path):
    """Of which 465 are PyTorch, its exporter and the model; the first needed 1,588 while scores were held at once."""
    golden = Path(__file__).parents[1] / "golden" / checkpoint
    # its own figure: what wait4 tells of a child begins with what this process held when it was started
    code = (
        "import atexit\n"
        "from posexport.cli import group\n"
        "peak = lambda: next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "atexit.register(lambda: print(peak()))\n"
        "group()\n"
    )
    command = [sys.executable, "-c", code, "convert", str(golden), "-o", str(tmp_path / "bundle")]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert int(child.stdout.split()[-1]) / 1000 < 730
