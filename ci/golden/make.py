"""Writes tests/golden: tiny checkpoints of transformers and what it computes with them, as checkpoints.yaml says.

Run by `ci/golden/make`, which knows the versions, in an environment of its own; posexport is not imported. A
checkpoint is a directory:

    config.json, model.safetensors   written by ``save_pretrained``
    expected.safetensors             for every point (``none-17``, ``left-17`` ...) the inputs as uint8 (real numbers as
                                     float32, code points as int32) and the outputs as float32: ``<point>.input_ids``,
                                     ``<point>.logits`` ...

The outputs are those of a float64 run, rounded once, by a fresh model for every point: some keep what a length or a
small image changed. The same seeds give the same bytes. That positions matter is a test
(tests/checkpoints/test_golden.py).
"""

import json
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from inputs import draw
from run import RUNS, by_length
from safetensors.torch import save_file

try:
    from transformers.initialization import no_init_weights
except ImportError:  # transformers 4
    from transformers.modeling_utils import no_init_weights

FIVE = int(transformers.__version__.partition(".")[0]) >= 5
#: bytes of one file, and of all
LIMIT, TOTAL = 100_000, 8_200_000


def table() -> dict[str, dict[str, Any]]:
    """Entries by the checkpoint's name, those of its group and of the version of transformers in them."""
    found = {}
    groups = yaml.safe_load(Path(__file__).with_name("checkpoints.yaml").read_text())
    for group in (group for name, group in groups.items() if not name.startswith("_")):
        shared = {key: value for key, value in group.items() if key != "checkpoints"}
        for name, own in group["checkpoints"].items():
            entry = over(shared, own)
            if not FIVE:
                found[name] = entry
            elif "v5" in entry:
                found[f"{name}-v5"] = over(entry, entry["v5"])
    return found


def over(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``own`` in the place of what is shared, settings beside those that are."""
    return {**shared, **own, "settings": {**shared["settings"], **own.get("settings", {})}}


def randomise(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Weights at which positions, biases and normalisations all matter."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # a formula's numbers
        noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
        scale = name.endswith("weight") and parameter.dim() == 1
        parameter.data.copy_(1 + 0.3 * noise if scale else 0.4 * noise)
    for name, buffer in model.named_buffers():
        # no parameters, and learned: what batch normalisation remembers, a bias
        if name.endswith("running_mean"):
            buffer.copy_(torch.from_numpy(0.3 * rng.standard_normal(buffer.shape)))
        elif name.endswith("running_var"):
            buffer.copy_(torch.from_numpy(0.5 + rng.random(buffer.shape)))
        elif name.endswith("final_logits_bias"):
            buffer.copy_(torch.from_numpy(rng.standard_normal(tuple(buffer.shape), dtype=np.float32)))


def temper(model: torch.nn.Module, entry: dict[str, Any]) -> None:
    """Weights multiplied, shifted or set as the table says, so that positions show and rounding does not."""
    learned = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def named(pattern: str) -> list[torch.Tensor]:
        return [value.data for name, value in learned.items() if fnmatchcase(name, pattern)]

    for pattern, factor in entry.get("scale", {}).items():
        matrices = [value.data for value in learned.values() if value.dim() > 1]
        for value in matrices if pattern == "matrices" else named(pattern):
            value.mul_(factor)
    for pattern, term in entry.get("shift", {}).items():
        for value in named(pattern):
            value.add_(term)
    for pattern, number in entry.get("first", {}).items():
        named(pattern)[0][0] = number


def make(target: Path, entry: dict[str, Any]) -> None:
    """One checkpoint and what it gives."""
    rng = np.random.default_rng(entry["seed"])
    kind = getattr(transformers, entry["class"])
    config = kind.config_class(**entry["settings"])
    if entry.get("no_init"):
        with no_init_weights():
            model = kind(config)
        model.tie_weights()
    else:
        model = kind(config)
    randomise(model, rng)
    temper(model, entry)
    model.to(getattr(torch, entry.get("stored", "float32"))).save_pretrained(target, safe_serialization=True)
    tensors = {}
    for point, rows in entry["points"].items():
        given = draw(model, entry, point, rows, rng)
        outputs = RUNS[entry["kind"]](target, kind, entry, given)
        kept = {f"{point}.{key}": value for key, value in outputs.items()}
        patterns = entry.get("keep", "*").split()
        kept = {key: value for key, value in kept.items() if any(fnmatchcase(key, each) for each in patterns)}
        if entry.get("mask") and "attention_mask" in given:
            kept = {key: masked(value, given["attention_mask"]) for key, value in kept.items()}
        if kept:
            tensors |= kept | {f"{point}.{name}": value for name, value in given.items()}
    if entry.get("by_length"):
        tensors |= by_length(target, kind, entry, rng)
    ids = torch.int32 if config.model_type == "canine" else torch.uint8
    tensors = {
        name: stored(value, ids if name.endswith("input_ids") else torch.uint8) for name, value in tensors.items()
    }
    save_file(tensors, target / "expected.safetensors")
    if entry["kind"] != "seq2seq":  # of which it says how decoders start and end
        target.joinpath("generation_config.json").unlink(missing_ok=True)


def masked(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Zero at padded tokens; an output without tokens as it is."""
    return value * mask.reshape(*mask.shape, *[1] * (value.dim() - 2)) if value.shape[:2] == mask.shape else value


def stored(value: torch.Tensor, integers: torch.dtype) -> torch.Tensor:
    """Real numbers in float32, others in the type that is given."""
    return value.to(torch.float32 if value.is_floating_point() else integers).contiguous()


def main(version: str, root: Path, only: list[str]) -> None:
    """All checkpoints of the version, or those whose names are in ``only``."""
    if transformers.__version__ != version:
        sys.exit(f"this needs transformers {version}, found {transformers.__version__}: run ci/golden/make")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    plan = table()
    if unknown := set(only) - set(plan):
        sys.exit(f"unknown checkpoints: {', '.join(sorted(unknown))}; known: {', '.join(plan)}")
    for name in only or plan:
        target = root / name
        shutil.rmtree(target, ignore_errors=True)
        make(target, plan[name])
        sizes = {path.name: path.stat().st_size for path in target.iterdir()}
        assert max(sizes.values()) <= LIMIT, sizes
        print(f"{name}: {json.dumps(sizes)}", flush=True)
    total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert total < TOTAL, total
    print(f"{len(only or plan)} checkpoints, {total} bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
