"""The checkpoints of checkpoints.yaml: tiny, with random weights, made by transformers."""

from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("checkpoints.yaml")


def table(path: Path = TABLE) -> dict[str, dict[str, Any]]:
    """Entries by name, with the settings of their groups."""
    groups = yaml.safe_load(path.read_text())
    return {
        name: {**row, "settings": row["settings"] if row.get("alone") else {**group["settings"], **row["settings"]}}
        for group in groups.values()
        for name, row in group["checkpoints"].items()
    }


def groups(path: Path = TABLE) -> dict[str, list[str]]:
    """Names of checkpoints by group."""
    return {group: list(content["checkpoints"]) for group, content in yaml.safe_load(path.read_text()).items()}


def is_type(entry: dict[str, Any]) -> bool:
    """Whether a row stands for a type, not for another way to convert one that has a row or a definition."""
    return not entry.keys() & {"through", "live"}


def make(target: Path, entry: dict[str, Any]) -> None:
    """A checkpoint whose weights are large enough that positions matter."""
    # a table is read where only yaml is installed
    import numpy as np
    import torch
    import transformers

    cls = getattr(transformers, entry["class"])
    torch.manual_seed(0)
    model = cls(cls.config_class(**entry["settings"])).eval()
    rng = np.random.default_rng(0)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and "position" in name:  # a table that is computed, not learned
            continue
        noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
        scale = name.endswith("weight") and parameter.dim() == 1
        # a normalisation behind a recurrence is close to singular where weights are large
        large = entry.get("weights", 0.4)
        spread = parameter.shape[-1] ** -0.5 if entry.get("narrow") and parameter.dim() > 1 else large
        parameter.data.copy_(1 + 0.3 * noise if scale else spread * noise)
    model.save_pretrained(target)
