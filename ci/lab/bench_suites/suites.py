"""What the named suites measure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.lab.bench_suites import candidates
from ci.lab.bench_suites.candidates import Checkpoint, Planned
from ci.lab.bench_suites.recipes import OUT, Recipe
from posexport.base.targets.precisions import FP32, PrecisionName
from posexport.inspect.bench.measurement import SamplingBudget
from posexport.inspect.bench.records import Point


@dataclass(frozen=True, kw_only=True)
class Case:
    """Candidates that are measured together; the first is the baseline."""

    model: str
    candidates: list[Planned]
    points: list[Point]
    budget: SamplingBudget = field(default_factory=SamplingBudget)


#: sizes of BERT-base, with tables for the longest length of the suites
BERT = ("vocab=30522", "hidden=768", "layers=12", "heads=12", "feedforward=3072", "max_positions=2048")
#: the same with two layers: attention has its share of a layer's time
FEW_LAYERS = ("vocab=30522", "hidden=768", "layers=2", "heads=12", "feedforward=3072", "max_positions=4096")
#: sizes of the Llama-like decoder that is measured (`ci.lab.bench_suites.checkpoints.LLAMA`)
LLAMA = (
    *("vocab=32000", "hidden=768", "layers=12", "heads=12", "kv_heads=4", "feedforward=2048", "max_positions=4096"),
    *("gated=true", "activation=silu", "norm_kind=rms", "eps=1e-6", "tied=false"),
    *("attention_bias=false", "feedforward_bias=false"),
)
#: of T5's encoder (`ci.lab.bench_suites.checkpoints.T5`)
T5 = (
    *("vocab=32128", "hidden=768", "layers=12", "heads=12", "feedforward=3072", "types=0", "activation=relu"),
    *("norm=pre", "norm_kind=rms", "final_norm=true", "embedding_norm=false", "scaled=false"),
    *("attention_bias=false", "feedforward_bias=false"),
)
PAPER = (
    *("nope", "absolute", "sinusoidal", "rope", "alibi", "t5", "kerple", "sandwich"),
    *("relative-key", "shaw-k", "transformer-xl", "relative-key-query", "deberta", "shaw-kv"),
)
#: bytes for each pair of a query and a key that ONNX Runtime 1.31 was seen to take in the attention layer
_SCORES, _PUBLISHED = 12 * 4, 1600
DECODED = ("nope", "rope", "alibi", "t5", "relative-key")


#: lengths of an encoder's calls, and tokens in a decoder's cache
LENGTHS, PASTS = (128, 512, 2048), (512, 2048)


def encoder(encoding: str, target: str) -> Planned:
    return _converted(f"encoder-{encoding}", BERT, target, vocab=30522)


def t5_baseline(target: str) -> Planned:
    """An encoder of T5-base's shape without positions."""
    return candidates.convert(
        "encoder-nope", *candidates.settings(T5), "--target", target, vocab=32128, name="encoder-nope of T5's shape"
    )


def decoder(encoding: str, target: str, *, static: bool = False) -> Planned:
    """A decoder of the Llama-like shape, with a growing cache or one buffer."""
    converted = _converted(
        f"decoder-{encoding}", LLAMA, target, *(("--cache", "static") if static else ()), vocab=32000
    )
    if not static:
        return converted
    assert converted.recipe is not None
    return replace(
        converted,
        name=f"{converted.name} static",
        recipe=replace(converted.recipe, name=f"{converted.recipe.name}-static"),
        options={"shared": True},
    )


def _converted(source: str, sizes: Sequence[str], target: str, *options: str, vocab: int) -> Planned:
    """A model through ``posexport convert``; the portable target is in its name. All targets have the same weights."""
    name = f"{source} portable" if target == "portable" else source
    converted = candidates.convert(
        source, *candidates.settings(sizes), "--target", target, *options, vocab=vocab, name=name
    )
    return replace(converted, weights=source)


def paper(target: str = "cpu") -> list[Case]:
    """What positions cost a whole encoder; with ``--target portable`` in standard operators alone."""
    points = [Point(new=length) for length in LENGTHS]
    few = SamplingBudget(least=2)  # calls of 2048 tokens take seconds
    return [
        Case(model="BERT-base shape", candidates=[encoder(name, target) for name in PAPER], points=points, budget=few)
    ]


def decode(target: str = "cpu") -> list[Case]:
    """Decode steps with many tokens in the KV cache: posexport, third-party exporters, and what positions cost."""
    llama = Checkpoint.drawn("llama")
    exported = llama.converted("--target", target)
    taking_part = [
        decoder("nope", target),
        llama.reading(),
        llama.transformers(),
        exported,
        llama.converted("--target", target, "--cache", "static", name="posexport static", shared=True),
        llama.converted("--target", "portable", name="posexport portable"),
        decoder("nope", target, static=True),
        candidates.eager(exported),
        candidates.eager(exported, compiled=True),
        *llama.third_party_exporters(),
        *(decoder(encoding, target) for encoding in DECODED[1:]),
    ]
    steps = SamplingBudget(warmup=4, runs=32, least=32)
    points = [Point(past=past) for past in PASTS]
    return [Case(model="llama shape", candidates=taking_part, points=points, budget=steps)]


def quantized(target: str = "cpu") -> list[Case]:
    """BERT-base in int8 beside ONNX Runtime's quantizer; a Llama-like decoder beside onnxruntime-genai's int4.

    Of the decoder a decode step and a prefill.
    onnxruntime-genai's is as posexport's is, blocks of 32 and activations rounded to int8 by blocks, but for the
    projection to the vocabulary, which has 4 bits by default and 8 in posexport's; here it is measured with both.
    """
    llama = Checkpoint.drawn("llama")

    def converted(
        name: str, precision: PrecisionName, *options: str, to: str = target, of: Checkpoint = llama, **worker: Any
    ) -> Planned:
        asked = ("--target", to, "--precision", precision, *options)
        return replace(of.converted(*asked, name=name, **worker), precision=precision)

    def genai(label: str, *options: str) -> list[Planned]:
        both = llama.genai("int4", label, "accuracy_level=4", "block_size=32", *options)
        graph = both[-1]
        growing = {key: value for key, value in graph.options.items() if key != "shared"}
        return [replace(each, precision="int4") for each in (*both, replace(graph, name=label, options=growing))]

    taking_part = [
        converted("float32", "fp32"),
        converted("int8", "int8"),
        converted("int8, weights only", "int8", "--weight-only"),
        converted("int8 portable", "int8", to="portable"),
        converted("int4", "int4"),
        converted("int4, blocks of 128", "int4", "--block-size", "128"),
        converted("int4 portable", "int4", to="portable"),
        converted("float32 static", "fp32", "--cache", "static", shared=True),
        converted("int4 static", "int4", "--cache", "static", shared=True),
        *genai("onnxruntime-genai int4"),
        *genai("onnxruntime-genai int4, head int8", "matmul_mixed_precision=last_matmul:int8"),
    ]
    bert = Checkpoint.drawn("bert-absolute")
    encoders = [
        converted("float32", "fp32", of=bert),
        converted("int8", "int8", of=bert),
        converted("int8 portable", "int8", to="portable", of=bert),
        *bert.quantize_dynamic(),
    ]
    steps = SamplingBudget(warmup=4, runs=48, least=32)
    return [
        Case(model="BERT-base shape", candidates=encoders, points=[Point(new=128), Point(new=512)]),
        Case(model="llama shape", candidates=taking_part, points=[Point(past=512)], budget=steps),
        Case(model="llama shape", candidates=taking_part, points=[Point(new=512)]),
    ]


def states(target: str = "cpu") -> list[Case]:
    """A hybrid with states between tokens and a Llama-like decoder in float32 and 4 bits, with third-party runtimes.

    A decode step with 512 tokens in the cache and a prefill of 512. All int4 files of a checkpoint have blocks of 32
    and a projection to the vocabulary in 8 bits.
    """
    cases = []
    for name, model in (("qwen3.5", "qwen3.5 shape"), ("llama-16", "llama shape")):
        checkpoint = Checkpoint.drawn(name, "transformers")
        options = ("accuracy_level=4", "block_size=32", "matmul_mixed_precision=last_matmul:int8")
        of_genai = [
            *checkpoint.conditional.genai(),
            *_in("int4", checkpoint.conditional.genai("int4", "onnxruntime-genai int4", *options)),
        ]
        taking_part = [
            *_by_cache(checkpoint, target, "fp32"),
            *_in("int4", _by_cache(checkpoint, target, "int4")),
            checkpoint.transformers(),
            checkpoint.transformers("bf16"),
            checkpoint.compiled(),
            *(each for each in of_genai if each.name.endswith("loop")),
            *checkpoint.llama_cpp(),
        ]
        reading = replace(checkpoint.reading(), environment="transformers")
        steps = SamplingBudget(warmup=4, runs=32, least=24)
        cases += [
            Case(model=model, candidates=[*taking_part, reading], points=[Point(past=512)], budget=steps),
            Case(model=model, candidates=taking_part, points=[Point(new=512)]),
        ]
    return cases


def ways(target: str = "cpu") -> list[Case]:
    """BERT-base's shape on ONNX Runtime's CPU provider, on OpenVINO and in PyTorch: precisions, batches, padding.

    All in the environment of this process, which needs the plug-in and transformers.
    """
    checkpoint = Checkpoint.drawn("bert-absolute", None)
    by_class = [
        replace(checkpoint.transformers(precision), name=f"PyTorch {precision}, SDPA", environment=None)
        for precision in (FP32.name, "bf16")
    ]
    graphs = [
        checkpoint.converted("--target", target, name="posexport fp32"),
        replace(
            checkpoint.converted("--target", target, "--precision", "int8", name="posexport int8"), precision="int8"
        ),
    ]
    graph = replace(checkpoint.converted("--target", "openvino", name="posexport OpenVINO"), provider="openvino")
    sessions = [
        replace(graph, name=f"{graph.name} {precision}", precision=precision, provider_options={"precision": precision})
        for precision in (FP32.name, "bf16")
    ]
    points = [Point(new=128), Point(new=512), Point(batch=8, new=128), Point(batch=16, new=128, padding=0.5)]
    few = SamplingBudget(least=2, runs=12)
    return [Case(model="BERT-base shape", candidates=[*by_class, *graphs, *sessions], points=points, budget=few)]


def _by_cache(checkpoint: Checkpoint, target: str, precision: PrecisionName) -> list[Planned]:
    """posexport's graphs with a dynamic and a static KV cache, and the static one in onnxruntime-genai's loop."""
    name = "posexport" if precision == "fp32" else f"posexport {precision}"
    options = ("--target", target, "--precision", precision)
    static = checkpoint.converted(
        *options, "--cache", "static", "--layout", "genai", name=f"{name} static", shared=True
    )
    loop = replace(static, name=f"{name} static in onnxruntime-genai", **checkpoint.genai_loop("bundle"))
    return [checkpoint.converted(*options, name=name), static, loop]


def _in(precision: PrecisionName, planned: Sequence[Planned]) -> list[Planned]:
    return [replace(each, precision=precision) for each in planned]


def third_party(target: str = "cpu") -> list[Case]:
    """The same checkpoint through every exporter."""
    points = [Point(new=length) for length in (128, 512)]
    cases = []
    for name in ("bert-absolute", "bert-relative-key", "bert-relative-key-query", "t5"):
        checkpoint = Checkpoint.drawn(name)
        exported = checkpoint.converted("--target", target)
        taking_part = [
            t5_baseline(target) if name == "t5" else encoder("nope", target),
            checkpoint.transformers(),
            exported,
            checkpoint.converted("--target", "portable", name="posexport portable"),
            candidates.eager(exported),
            candidates.eager(exported, compiled=True),
            *checkpoint.third_party_exporters(),
        ]
        cases.append(Case(model=name, candidates=taking_part, points=points))
    return cases


def of_checkpoint(directory: Path, target: str) -> Case:
    """A checkpoint of yours through every exporter; the baseline is posexport's graph."""
    checkpoint = Checkpoint.there(directory)
    exported = checkpoint.converted("--target", target)
    eager = [candidates.eager(exported), candidates.eager(exported, compiled=True)]
    taking_part = [exported, checkpoint.transformers(), *eager, *checkpoint.third_party_exporters()]
    points = [Point(past=512)] if checkpoint.decoder else [Point(new=128), Point(new=512)]
    return Case(model=checkpoint.name, candidates=taking_part, points=points)


def lowerings(target: str = "cpu") -> list[Case]:
    """What the planner takes against every single lowering that can stand for it, from short calls to long ones."""
    cases = []
    for encoding in ("alibi", "relative-key", "relative-key-query"):
        source = f"encoder-{encoding}"
        options = (*candidates.settings(FEW_LAYERS), "--target", target, "--lowering")
        taking_part = [
            candidates.convert(source, *options, name, vocab=30522, name=f"{source} {name}")
            for name in ("auto", "formula", "blockwise", "attention", "multi-head")
        ]
        points = [Point(new=length) for length in (32, *LENGTHS, 4096)]
        same = [replace(candidate, weights=source) for candidate in taking_part]
        cases.append(Case(model=f"{source}, 2 layers", candidates=same, points=points, budget=SamplingBudget(least=2)))
    return cases


def attention(target: str = "cpu") -> list[Case]:
    """One layer: what relative_key adds to ONNX's own attention, and what its published form adds."""
    published = replace(_layer("published form", "published", "portable"), pair_bytes=_PUBLISHED)
    taking_part = [_layer_baseline(), _layer("relative-key", "lowered", target), published]
    points = [Point(new=128 << doubled) for doubled in range(7)]
    return [Case(model="one attention layer, 12 heads of 64", candidates=taking_part, points=points)]


def growth(target: str = "cpu") -> list[Case]:
    """One layer of relative_key as the length doubles and doubles again; ONNX's own attention while memory lasts."""
    taking_part = [_layer_baseline(), _layer("relative-key", "lowered", target)]
    points = [Point(new=256 << doubled) for doubled in range(7)]
    few = SamplingBudget(least=2)  # a call of the baseline at the end takes half a minute
    return [Case(model="one attention layer, 12 heads of 64", candidates=taking_part, points=points, budget=few)]


def _layer_baseline() -> Planned:
    recipe = Recipe(name="attention-baseline", module="ci.lab.bench_suites.attention", arguments=(f"{OUT}/model.onnx",))
    return Planned(
        name="nope, ai.onnx Attention", recipe=recipe, model="model.onnx", vocab=2, weights="nope", pair_bytes=_SCORES
    )


def _layer(name: str, factory: str, target: str) -> Planned:
    source = str(Path(__file__).with_name("attention.py"))
    converted = candidates.convert(f"{source}:{factory}", "--target", target, vocab=2, name=name)
    return replace(converted, weights="relative-key")


#: functions of the target (``convert --target``)
SUITES: dict[str, Callable[..., list[Case]]] = {
    "paper": paper,
    "decode": decode,
    "quantized": quantized,
    "states": states,
    "ways": ways,
    "rivals": third_party,
    "lowerings": lowerings,
    "attention": attention,
    "growth": growth,
}


def chosen(
    cases: Sequence[Case], *, third_party: Sequence[str], only: Sequence[str], points: Sequence[Point]
) -> list[Case]:
    """Cases with fewer candidates: their baselines, and those whose names hold a text of ``only``.

    ``third_party``: the exporters beside posexport; none: all of them.
    """

    def is_chosen(candidate: Planned) -> bool:
        named = not only or any(text in candidate.name for text in only)
        return named and (not third_party or candidate.third_party is None or candidate.third_party in third_party)

    kept = []
    for case in cases:
        baseline, *others = case.candidates
        taking_part = [baseline, *filter(is_chosen, others)]
        if len(taking_part) > 1 or not (only or third_party):
            kept.append(replace(case, candidates=taking_part, points=list(points) or case.points))
    return kept
