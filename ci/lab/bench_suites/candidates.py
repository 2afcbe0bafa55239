"""What suites measure: a model that a recipe exports, by posexport or a third-party exporter, and its worker."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ci.lab.bench_suites import checkpoints
from ci.lab.bench_suites.markdown import READING
from ci.lab.bench_suites.recipes import OUT, Recipe, make, python_of
from posexport.base.targets.precisions import FP32, PrecisionName, precision_named
from posexport.inspect.bench.candidate import Candidate, Export, nodes, reads
from posexport.inspect.bench.processes import FailedError


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A `posexport.inspect.bench.candidate.Candidate` whose model may not be there yet.

    ``model``: the file in the recipe's folder; without a recipe what the worker reads. ``third_party``: what
    ``--rival`` calls its exporter; None: posexport. ``pair_bytes``: memory for each pair of a query and a key, where
    that decides whether a machine can run it.
    """

    name: str
    worker: str = "posexport.inspect.bench.workers.onnx"
    recipe: Recipe | None
    model: str
    vocab: int
    weights: str
    third_party: str | None = None
    environment: str | None = None
    pair_bytes: int = 0
    precision: PrecisionName = FP32.name
    provider: str | None = None
    provider_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def environments(self) -> list[str]:
        """Those of third-party exporters that export it and run it."""
        names = (self.recipe.environment if self.recipe else None, self.environment)
        return [name for name in names if name is not None]

    def made(self, remark: Callable[[str], None] = lambda _: None) -> Candidate:
        """The candidate with its model, or with the reason why there is none."""
        same = ("name", "vocab", "weights", "worker", "environment", "precision", "options")
        same += ("provider", "provider_options")
        plain = Candidate(
            model=self.model, by_posexport=self.third_party is None, **{name: getattr(self, name) for name in same}
        )
        try:
            plain = replace(plain, python=python_of(self.environment))
            if self.recipe is None:
                return plain
            export = make(self.recipe, remark)
        except FailedError as err:
            return replace(plain, failed=f"the export failed: {err}" if self.recipe else str(err))
        path = (export.folder / self.model).absolute()
        # the folder that onnxruntime-genai reads holds one graph, of this name
        graph = path / "model.onnx" if path.is_dir() else path
        cost = Export(seconds=export.seconds, peak=export.peak, remark=export.remark)
        weights = graph if graph.is_file() else path / "model.safetensors"
        read = reads(weights, plain.python if graph.suffix == ".gguf" else None)
        if read is not None and not graph.is_file() and precision_named(self.precision).half:
            read //= 2  # checkpoints are float32
        return replace(plain, model=str(path), export=cost, nodes=nodes(graph), reads=read)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A Hugging Face directory that every exporter reads; ``recipe`` makes it, unless it is there (``path``)."""

    name: str
    config: dict[str, Any]
    recipe: Recipe | None = None
    path: str = "{checkpoint}"

    @staticmethod
    def drawn(name: str, environment: str | None = "optimum") -> "Checkpoint":
        """One of `ci.lab.bench_suites.checkpoints`, with random weights, by the transformers of ``environment``.

        ``environment`` None: that of this process.
        """
        # transformers 4 writes tables of relative_key, which 5 does not know
        module = "ci.lab.rivals.exporters.drawn"
        recipe = Recipe(name=f"checkpoint-{name}", module=module, arguments=(name, OUT), environment=environment)
        return Checkpoint(name=name, config=checkpoints.CONFIGS[name], recipe=recipe)

    @staticmethod
    def there(directory: Path) -> "Checkpoint":
        path = directory.absolute()
        return Checkpoint(name=path.name, config=json.loads((path / "config.json").read_text()), path=str(path))

    @property
    def decoder(self) -> bool:
        """It has a cache."""
        return str(self.config["architectures"][0]).endswith("ForCausalLM")

    def candidate(self, name: str, recipe: Recipe | None, model: str, **more: Any) -> Planned:
        vocab = int(self.config["vocab_size"])
        return Planned(name=name, recipe=recipe, model=model, vocab=vocab, weights=self.name, **more)

    def converted(self, *options: str, name: str = "posexport", **worker: Any) -> Planned:
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

    def transformers(self, precision: PrecisionName = FP32.name) -> Planned:
        return self.candidate(
            "transformers, PyTorch eager" + (f", {precision}" if precision != FP32.name else ""),
            self.recipe,
            "" if self.recipe else self.path,
            worker="posexport.inspect.bench.workers.transformers",
            third_party="torch",
            environment=self.environment,
            precision=precision,
            options={"dtype": precision_named(precision).dtype.name},
        )

    def compiled(self) -> Planned:
        """transformers with its static cache and torch.compile."""
        eager = self.transformers()
        name = "transformers, static cache, torch.compile"
        return replace(eager, name=name, options={**eager.options, "compiled": True})

    def llama_cpp(self) -> list[Planned]:
        """llama.cpp with the weights in float32 and in 4 bits."""
        worker, exporter, environment = "ci.lab.rivals.workers.llama", "ci.lab.rivals.exporters.gguf", "llama"
        precisions: dict[str, PrecisionName] = {"float32": "fp32", "q4_0": "int4"}
        return [
            replace(
                self.exported_by(environment, f"llama.cpp {weights}", exporter, self.path, OUT, weights),
                worker=worker,
                environment=environment,
                model="model.gguf",
                precision=precision,
                options={"float32": precision == "fp32"},
            )
            for weights, precision in precisions.items()
        ]

    def torch_export(self) -> Planned:
        """The class of transformers through ``torch.onnx.export``, of an encoder."""
        arguments = (self.path, f"{OUT}/model.onnx")
        module = "ci.lab.rivals.exporters.torch"
        return replace(self.exported_by(self.environment, "torch.onnx.export", module, *arguments), third_party="torch")

    def reading(self) -> Planned:
        """No model: what a step of these weights has to read, once."""
        worker = "ci.lab.bench_suites.workers.reading"
        return replace(self.candidate(READING, self.recipe, "", worker=worker), weights=f"{self.name}, read")

    def optimum(self) -> Planned:
        """optimum-onnx; of T5 it exports encoder and decoder, each in a file of its own.

        Of a checkpoint that holds the encoder alone, version 0.1 writes one file with a decoder of invented weights,
        for any task.
        """
        task = "text-generation-with-past" if self.decoder else "feature-extraction"
        arguments = ("--model", self.path, "--task", "text2text-generation" if self._t5 else task, OUT)
        candidate = self._whole.exported_by("optimum", "optimum-onnx", "optimum.exporters.onnx", *arguments)
        return replace(candidate, model="encoder_model.onnx", weights=self.name) if self._t5 else candidate

    def quantize_dynamic(self) -> list[Planned]:
        """optimum-onnx's graph of an encoder through ONNX Runtime's quantizer: a scale per weight, and per channel."""
        module = "ci.lab.rivals.exporters.dynamic"
        return [
            replace(self.exported_by("optimum", label, module, self.path, OUT, scales), precision="int8")
            for label, scales in (("quantize_dynamic", "tensor"), ("quantize_dynamic, per channel", "channel"))
        ]

    def exporters(self, fusions: str = "") -> Planned:
        """transformers.exporters, with ONNX Runtime's fusions for a provider or without."""
        label = f"transformers.exporters{' fused' if fusions else ''}"
        arguments = (self.path, OUT, *([fusions] if fusions else []))
        return self.exported_by("transformers", label, "ci.lab.rivals.exporters.transformers", *arguments)

    def mobius(self) -> list[Planned]:
        """mobius-onnx, of a decoder with a growing cache and with one buffer; of T5 each half in a file of its own.

        Version 0.1 refuses a T5 checkpoint without a decoder.
        """
        arguments = ("build", "--config", self.path, "--ep", "cpu", OUT)
        candidate = self._whole.exported_by("mobius", "mobius-onnx", "mobius", *arguments)
        if self._t5:
            return [replace(candidate, model="encoder/model.onnx", weights=self.name)]
        shared = replace(candidate, name="mobius-onnx shared buffer", options={"shared": True})
        return [candidate, shared] if self.decoder else [candidate]

    def genai(self, precision: str = "fp32", label: str = "onnxruntime-genai", *options: str) -> list[Planned]:
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
            replace(candidate, name=f"{label} loop", **self.genai_loop()),
            replace(candidate, name=f"{label} graph", options={"shared": True, "head_size": head_size}),
        ]

    @staticmethod
    def genai_loop(folder: str = "") -> dict[str, Any]:
        """What a candidate changes to run a graph in onnxruntime-genai's token loop, from a folder of the recipe."""
        return {"worker": "ci.lab.rivals.workers.genai", "model": folder, "environment": "genai", "options": {}}

    @property
    def conditional(self) -> "Checkpoint":
        """The text model of images and text, where onnxruntime-genai's builder reads no other; else this one."""
        if self.config["model_type"] != "qwen3_5_text":
            return self
        module = "ci.lab.rivals.exporters.conditional"
        name, arguments = f"checkpoint-{self.name}-conditional", (self.path, OUT)
        recipe = Recipe(name=name, module=module, arguments=arguments, environment="genai", checkpoint=self.recipe)
        return replace(self, recipe=recipe)

    def third_party_exporters(self) -> list[Planned]:
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

    def exported_by(self, exporter: str, label: str, module: str, *arguments: str) -> Planned:
        """The graph that ``module`` makes in the exporter's environment."""
        name = f"{self.name}-{label.replace(' ', '-')}"
        recipe = Recipe(name=name, module=module, arguments=arguments, environment=exporter, checkpoint=self.recipe)
        return self.candidate(label, recipe, "model.onnx", third_party=exporter)


def convert(source: str, *options: str, vocab: int, name: str | None = None, **worker: Any) -> Planned:
    """Anything through ``posexport convert`` with ``options``; ``worker``: the worker's options."""
    label = name or source
    recipe = _convert("".join(c if c.isalnum() or c in "-." else "-" for c in label), source, options)
    return Planned(name=label, recipe=recipe, model="bundle/model.onnx", vocab=vocab, weights=label, options=worker)


def _convert(name: str, source: str, options: Sequence[str], checkpoint: Recipe | None = None) -> Recipe:
    arguments = ("convert", source, "-o", f"{OUT}/bundle", "--no-verify", *options)
    return Recipe(name=name.replace(" ", "-"), module="posexport", arguments=arguments, checkpoint=checkpoint)


def settings(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def eager(candidate: Planned, *, compiled: bool = False) -> Planned:
    """The definition of a converted candidate in PyTorch, as it is written or compiled."""
    source, pairs, checkpoint = _source(candidate)
    return replace(
        candidate,
        name=f"our definition, {'torch.compile' if compiled else 'PyTorch eager'}",
        worker="posexport.inspect.bench.workers.definition",
        recipe=checkpoint,
        model="" if checkpoint else source,
        third_party="torch",
        options={"settings": pairs, "compiled": compiled},
    )


def _source(candidate: Planned) -> tuple[str, list[str], Recipe | None]:
    """What was converted, with which settings, from which drawn checkpoint."""
    assert candidate.recipe is not None
    _, source, *options = candidate.recipe.arguments
    return source, [value for key, value in pairwise(options) if key == "--set"], candidate.recipe.checkpoint
