"""What is measured: a model that a recipe exports, and the worker that runs it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from posexport.bench import checkpoints
from posexport.bench.recipes import OUT, Recipe
from posexport.bench.records import READING
from posexport.targets.precisions import FP32, PrecisionName


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model and the worker that runs it.

    ``model``: the file in the recipe's folder (or, without a recipe, the source or file itself) that the worker
    reads; ``worker``: its module, ours or one of ``ci/rivals/workers``. Candidates of the same ``weights`` must agree.
    ``third_party``: what ``--rival`` calls its exporter; None: posexport.
    ``precision``: whose answer agrees within what it may cost.
    ``pair_bytes``: memory for each pair of a query and a key, where that decides whether a machine can run it.
    """

    name: str
    worker: str = "posexport.bench.workers.onnx"
    recipe: Recipe | None
    model: str
    vocab: int
    weights: str
    third_party: str | None = None
    environment: str | None = None
    pair_bytes: int = 0
    precision: PrecisionName = FP32.name
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def environments(self) -> list[str]:
        """Those of third-party exporters that export it and run it."""
        names = (self.recipe.environment if self.recipe else None, self.environment)
        return [name for name in names if name is not None]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A Hugging Face directory that every exporter reads; ``recipe`` makes it, unless it is there (``path``)."""

    name: str
    config: dict[str, Any]
    recipe: Recipe | None = None
    path: str = "{checkpoint}"

    @staticmethod
    def drawn(name: str) -> "Checkpoint":
        """One of `posexport.bench.checkpoints`, with random weights."""
        recipe = Recipe(name=f"checkpoint-{name}", module="posexport.bench.checkpoints", arguments=(name, OUT))
        return Checkpoint(name=name, config=checkpoints.CONFIGS[name], recipe=recipe)

    @staticmethod
    def there(directory: Path) -> "Checkpoint":
        path = directory.absolute()
        return Checkpoint(name=path.name, config=json.loads((path / "config.json").read_text()), path=str(path))

    @property
    def decoder(self) -> bool:
        """It has a cache."""
        return str(self.config["architectures"][0]).endswith("ForCausalLM")

    def candidate(self, name: str, recipe: Recipe | None, model: str, **more: Any) -> Candidate:
        vocab = int(self.config["vocab_size"])
        return Candidate(name=name, recipe=recipe, model=model, vocab=vocab, weights=self.name, **more)

    def converted(self, *options: str, name: str = "posexport", **worker: Any) -> Candidate:
        """Through ``posexport convert`` with ``options``; ``worker``: the worker's options."""
        recipe = _convert(f"{self.name}-{name}", self.path, options, self.recipe)
        return self.candidate(name, recipe, "bundle/model.onnx", options=worker)

    @property
    def environment(self) -> str:
        """The environment with the newest transformers that reads these weights.

        Version 5 reads relative_key and relative_key_query as absolute positions; the environment of optimum has
        version 4.57, which does not.
        """
        relative = str(self.config.get("position_embedding_type")).startswith("relative_key")
        return "optimum" if relative else "transformers"

    def transformers(self) -> Candidate:
        return self.candidate(
            "transformers, PyTorch eager",
            self.recipe,
            "" if self.recipe else self.path,
            worker="ci.rivals.workers.transformers",
            third_party="torch",
            environment=self.environment,
        )

    def torch_export(self) -> Candidate:
        """The class of transformers through ``torch.onnx.export``, of an encoder."""
        arguments = (self.path, f"{OUT}/model.onnx")
        module = "ci.rivals.exporters.torch"
        return replace(self.exported_by(self.environment, "torch.onnx.export", module, *arguments), third_party="torch")

    def reading(self) -> Candidate:
        """No model: what a step of these weights has to read, once. Of the embeddings that is a row."""
        sizes = {name: prod(shape) for name, shape in checkpoints.tensors(self.config) if "embed_tokens" not in name}
        cached = 2 * self.config["num_hidden_layers"] * self.config["num_key_value_heads"] * self.config["head_dim"]
        read = {"numbers": sum(sizes.values()), "per_token": cached}
        candidate = self.candidate(READING, None, "", worker="posexport.bench.workers.reading", options=read)
        return replace(candidate, weights="none")

    def optimum(self) -> Candidate:
        """optimum-onnx; of T5 it exports encoder and decoder, each in a file of its own.

        Of a checkpoint that holds the encoder alone, version 0.1 writes one file with a decoder of invented weights,
        for any task.
        """
        task = "text-generation-with-past" if self.decoder else "feature-extraction"
        arguments = ("--model", self.path, "--task", "text2text-generation" if self._t5 else task, OUT)
        candidate = self._whole.exported_by("optimum", "optimum-onnx", "optimum.exporters.onnx", *arguments)
        return replace(candidate, model="encoder_model.onnx", weights=self.name) if self._t5 else candidate

    def quantize_dynamic(self) -> list[Candidate]:
        """optimum-onnx's graph of an encoder through ONNX Runtime's quantizer: a scale per weight, and per channel."""
        module = "ci.rivals.exporters.dynamic"
        return [
            replace(self.exported_by("optimum", label, module, self.path, OUT, scales), precision="int8")
            for label, scales in (("quantize_dynamic", "tensor"), ("quantize_dynamic, per channel", "channel"))
        ]

    def exporters(self, fusions: str = "") -> Candidate:
        """transformers.exporters, with ONNX Runtime's fusions for a provider or without."""
        label = f"transformers.exporters{' fused' if fusions else ''}"
        arguments = (self.path, OUT, *([fusions] if fusions else []))
        return self.exported_by("transformers", label, "ci.rivals.exporters.transformers", *arguments)

    def mobius(self) -> list[Candidate]:
        """mobius-onnx, of a decoder with a growing cache and with one buffer; of T5 each half in a file of its own.

        Version 0.1 refuses a T5 checkpoint without a decoder.
        """
        arguments = ("build", "--config", self.path, "--ep", "cpu", OUT)
        candidate = self._whole.exported_by("mobius", "mobius-onnx", "mobius", *arguments)
        if self._t5:
            return [replace(candidate, model="encoder/model.onnx", weights=self.name)]
        shared = replace(candidate, name="mobius-onnx shared buffer", options={"shared": True})
        return [candidate, shared] if self.decoder else [candidate]

    def genai(self, precision: str = "fp32", label: str = "onnxruntime-genai", *options: str) -> list[Candidate]:
        """onnxruntime-genai's model builder: in its own token loop, and its graph alone with a shared buffer.

        ``options``: of the builder, each KEY=VALUE.
        """
        if not self.decoder:
            return []
        more = ("--extra_options", *options) if options else ()
        arguments = ("-i", self.path, "-o", OUT, "-p", precision, "-e", "cpu", "-c", f"{OUT}/cache", *more)
        candidate = self.exported_by("genai", label, "onnxruntime_genai.models.builder", *arguments)
        head_size = self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]
        return [
            replace(
                candidate,
                name=f"{label} loop",
                worker="ci.rivals.workers.genai",
                model="",
                environment="genai",
            ),
            replace(candidate, name=f"{label} graph", options={"shared": True, "head_size": head_size}),
        ]

    def third_party_exporters(self) -> list[Candidate]:
        """Every graph of others; a user's own T5 encoder has no row of exporters that read none alone."""
        plain = [] if self.decoder else [self.torch_export()]
        alone = self._t5 and self._whole is self
        optimum, mobius = ([], []) if alone else ([self.optimum()], self.mobius())
        return [*plain, *optimum, self.exporters(), self.exporters("cpu"), *mobius, *self.genai()]

    @property
    def _t5(self) -> bool:
        return bool(self.config["model_type"] == "t5")

    @property
    def _whole(self) -> "Checkpoint":
        """The same encoder with a decoder, for exporters that read no T5 encoder alone; the user's own is as it is."""
        return Checkpoint.drawn(f"{self.name}-with-decoder") if self._t5 and self.recipe else self

    def exported_by(self, exporter: str, label: str, module: str, *arguments: str) -> Candidate:
        """The graph that ``module`` makes in the exporter's environment."""
        name = f"{self.name}-{label.replace(' ', '-')}"
        recipe = Recipe(name=name, module=module, arguments=arguments, environment=exporter, checkpoint=self.recipe)
        return self.candidate(label, recipe, "model.onnx", third_party=exporter)


def convert(source: str, *options: str, vocab: int, name: str | None = None, **worker: Any) -> Candidate:
    """Anything through ``posexport convert`` with ``options``; ``worker``: the worker's options."""
    label = name or source
    recipe = _convert("".join(c if c.isalnum() or c in "-." else "-" for c in label), source, options)
    return Candidate(
        name=label,
        recipe=recipe,
        model="bundle/model.onnx",
        vocab=vocab,
        weights=label,
        options=worker,
    )


def _convert(name: str, source: str, options: Sequence[str], checkpoint: Recipe | None = None) -> Recipe:
    arguments = ("convert", source, "-o", f"{OUT}/bundle", "--no-verify", *options)
    return Recipe(name=name.replace(" ", "-"), module="posexport", arguments=arguments, checkpoint=checkpoint)


def settings(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def eager(candidate: Candidate, *, compiled: bool = False) -> Candidate:
    """The definition of a converted candidate in PyTorch, as it is written or compiled."""
    source, pairs, checkpoint = _source(candidate)
    return replace(
        candidate,
        name=f"our definition, {'torch.compile' if compiled else 'PyTorch eager'}",
        worker="posexport.bench.workers.definition",
        recipe=checkpoint,
        model="" if checkpoint else source,
        third_party="torch",
        options={"settings": pairs, "compiled": compiled},
    )


def _source(candidate: Candidate) -> tuple[str, list[str], Recipe | None]:
    """What was converted, with which settings, from which drawn checkpoint."""
    assert candidate.recipe is not None
    _, source, *options = candidate.recipe.arguments
    return source, [value for key, value in pairwise(options) if key == "--set"], candidate.recipe.checkpoint
