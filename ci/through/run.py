"""Converts small random checkpoints through transformers, as checkpoints.yaml says, and prints a line for each.

Run by `ci/through/run`. A checkpoint that exists is made again only where its entry changed. Exit 1: one was not
proven, or was not refused as it must be.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

import posexport
from posexport.errors import PosexportError


def table() -> dict[str, dict[str, Any]]:
    """Entries by name, with the settings of their groups."""
    groups = yaml.safe_load(Path(__file__).with_name("checkpoints.yaml").read_text())
    return {
        name: {**own, "settings": own["settings"] if own.get("own") else {**group["settings"], **own["settings"]}}
        for group in groups.values()
        for name, own in group["checkpoints"].items()
    }


def make(target: Path, entry: dict[str, Any]) -> None:
    """A checkpoint whose weights are large enough that positions matter."""
    cls = getattr(transformers, entry["class"])
    torch.manual_seed(0)
    model = cls(cls.config_class(**entry["settings"])).eval()
    rng = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
        scale = name.endswith("weight") and parameter.dim() == 1
        parameter.data.copy_(1 + 0.3 * noise if scale else 0.4 * noise)
    model.save_pretrained(target)


def outcome(name: str, source: Path, target: Path, entry: dict[str, Any]) -> tuple[bool, str]:
    """Whether it is as the table says, and how it ended."""
    through = "transformers" if entry.get("through") else None
    try:
        result = posexport.convert(str(source), target, target="cpu", through=through, force=True)
    except PosexportError as err:
        said = str(err).replace(f"{source}/", "").replace(str(source), name)
        return entry.get("refused", "\0") in said, f"refused: {said}"
    except Exception as err:  # noqa: BLE001 (a defect, which must not end the other rows)
        return False, f"defect: {type(err).__name__}: {err}"[:500]
    return result.good and "refused" not in entry, "proven" if result.good else f"missed: {result}"[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    plan, bad = table(), []
    for name in options.names or plan:
        source, began = options.into / "checkpoints" / name, time.monotonic()
        entry = source.with_suffix(".json")
        if not entry.exists() or json.loads(entry.read_text()) != plan[name]:
            make(source, plan[name])
            entry.write_text(json.dumps(plan[name]))
        right, text = outcome(name, source, options.into / "bundles" / name, plan[name])
        bad += [] if right else [name]
        row = {"name": name, "right": right, "outcome": text, "seconds": round(time.monotonic() - began)}
        print(json.dumps(row), flush=True)
    sys.exit(f"not as they must be: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
