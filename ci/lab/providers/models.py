"""The models of ci/lab/providers/run: each encoding, and one golden checkpoint of each model type."""

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
_SMALL = ("layers=2",)
#: golden checkpoints that are also run in int4
_INT4 = ("bert-absolute", "llama-forcausallm", "gpt2-lmheadmodel", "t5-forconditionalgeneration", "qwen3-forcausallm")


@dataclass(frozen=True)
class Model:
    """``name``: of the table; ``source``: of `posexport.convert`; ``family``: encoder, decoder or model type."""

    name: str
    source: str
    family: str
    precision: str = "fp32"
    settings: tuple[str, ...] = ()


def models() -> list[Model]:
    """All models, in the order of the table."""
    return [*_built_in(), *_golden(), *_quantized()]


def _built_in() -> list[Model]:
    from posexport.catalogue.stored import catalogue

    names = [entry["name"] for entry in catalogue("models")]
    # encoder-decoders are among the golden checkpoints
    texts = [name for name in names if name.startswith(("encoder-", "decoder-")) and "encoder-decoder" not in name]
    return [Model(name, name, name.partition("-")[0], settings=_SMALL) for name in texts]


def _golden() -> list[Model]:
    """The first checkpoint of every type of model, by name."""
    first: dict[str, Path] = {}
    for config in sorted(GOLDEN.glob("*/config.json")):
        first.setdefault(json.loads(config.read_text())["model_type"], config.parent)
    return [Model(folder.name, str(folder), kind) for kind, folder in first.items()]


def _quantized() -> list[Model]:
    return [Model(f"{name} int4", str(GOLDEN / name), name, precision="int4") for name in _INT4]
