"""``--layout sentence-transformers``: a bundle that sentence-transformers 5 and 6 load as a model folder.

``modules.json`` names one module, `posexport.sentence_transformers.Transformer`, in place of all modules of the source:
the graph has their pooling, projections and normalisation. ``config_sentence_transformers.json`` has prompts and
similarity, and the class that loads the folder.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from posexport.conversion.export.layout import Layout
from posexport.errors import PosexportError
from posexport.serve.layouts.shared import read_json
from posexport.sources.source import Source

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
LOGITS = "logits"
LABELS, DENSE = "1_Dense", "sentence_transformers.base.modules.dense.Dense"
CLASS = "posexport.sentence_transformers.Transformer"


def arrange(source: Source) -> Source:
    """Returns ``source``. Raises PosexportError for models that are neither embedders nor cross-encoders."""
    if source.pair_rules is None and source.task != "sentence-embedding":
        raise PosexportError(
            f"--layout sentence-transformers is for embedders and cross-encoders; {source.name} is for {source.task}: "
            "leave it out (SentenceTransformer(modules=[posexport.sentence_transformers.Transformer(DIR), ...]) takes "
            "a bundle with hidden states, followed by other modules)"
        )
    return source


def write(directory: Path, source: Source) -> None:
    """Overwrites both files of the source; a cross-encoder with several labels gets a ``Dense`` for their number."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": CLASS}]
    labels = _labels(source)
    if source.pair_rules is not None and labels > 1:
        modules.append({"idx": 1, "name": "1", "path": LABELS, "type": DENSE})
        _write_labels(directory / LABELS, labels)
    _write(directory / MODULES, modules)
    _write(directory / SETTINGS, {**read_json(directory / SETTINGS), **settings(source)})


def settings(source: Source) -> dict[str, Any]:
    """The keys of config_sentence_transformers.json that the layout sets."""
    rules = source.pair_rules
    if rules is None:
        return {"model_type": "SparseEncoder" if _weighs_words(source) else "SentenceTransformer"}
    # without activation_fn the library uses the activation of a single label
    return {"model_type": "CrossEncoder", "activation_fn": f"torch.nn.{rules.activation_of(_labels(source))}"}


def _labels(source: Source) -> int:
    size = next((spec.axes[-1] for spec in source.outputs if spec.name == LOGITS), 1)
    return size if isinstance(size, int) else 1


def _write_labels(folder: Path, labels: int) -> None:
    """Writes an identity projection: the library reads the number of labels from the last ``Dense`` to scores."""
    folder.mkdir()
    config = {
        "in_features": labels,
        "out_features": labels,
        "bias": False,
        "activation_function": "torch.nn.Identity",
        "module_input_name": "scores",
        "module_output_name": "scores",
    }
    _write(folder / "config.json", config)
    save_file({"linear.weight": np.eye(labels, dtype=np.float32)}, folder / "model.safetensors")


def _weighs_words(source: Source) -> bool:
    """Whether the source's modules end in a SpladePooling."""
    path = source.files.get(MODULES)
    modules = json.loads(path.read_text(encoding="utf-8")) if path is not None else []
    return any(str(module.get("type", "")).endswith("SpladePooling") for module in modules if isinstance(module, dict))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def loading_line(directory: Path) -> str:
    """The call that loads the directory; version 6 imports a class outside its package only with the option."""
    return f'{read_json(directory / SETTINGS)["model_type"]}("{directory}", trust_remote_code=True)'


SENTENCE_TRANSFORMERS = Layout(arrange=arrange, write=write, loading_line=loading_line)
