"""What the named suites measure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from posexport.bench import contestants as of
from posexport.bench.contestants import Checkpoint, Contestant
from posexport.bench.recipes import OUT, Recipe
from posexport.bench.records import Point
from posexport.bench.run import Effort, Heat

#: sizes of BERT-base, with tables for the longest length of the suites
BERT = ("vocab=30522", "hidden=768", "layers=12", "heads=12", "feedforward=3072", "max_positions=2048")
#: sizes of the Llama-like decoder that is measured (`posexport.bench.checkpoints.LLAMA`)
LLAMA = (
    *("vocab=32000", "hidden=768", "layers=12", "heads=12", "kv_heads=4", "feedforward=2048", "max_positions=4096"),
    *("gated=true", "activation=silu", "norm_kind=rms", "eps=1e-6", "tied=false"),
    *("attention_bias=false", "feedforward_bias=false"),
)
#: of T5's encoder (`posexport.bench.checkpoints.T5`)
T5 = (
    *("vocab=32128", "hidden=768", "layers=12", "heads=12", "feedforward=3072", "types=0", "activation=relu"),
    *("norm=pre", "norm_kind=rms", "final_norm=true", "embedding_norm=false", "scaled=false"),
    *("attention_bias=false", "feedforward_bias=false"),
)
PAPER = (
    *("nope", "absolute", "sinusoidal", "rope", "alibi", "t5", "kerple", "sandwich"),
    *("relative-key", "shaw-k", "transformer-xl", "relative-key-query", "deberta", "shaw-kv"),
)
DECODED = ("nope", "rope", "alibi", "t5", "relative-key")


def encoder(encoding: str) -> Contestant:
    """An encoder of BERT-base's shape."""
    return of.convert(f"encoder-{encoding}", *of.settings(BERT), vocab=30522)


def t5_floor() -> Contestant:
    """An encoder of T5-base's shape without positions."""
    return of.convert("encoder-nope", *of.settings(T5), vocab=32128, name="encoder-nope of T5's shape")


def decoder(encoding: str, *options: str) -> Contestant:
    """A decoder of the Llama-like shape."""
    return of.convert(f"decoder-{encoding}", *of.settings(LLAMA), *options, vocab=32000)


def paper() -> list[Heat]:
    """What positions cost a whole encoder."""
    points = [Point(new=length) for length in (128, 512, 2048)]
    return [Heat(model="BERT-base shape", contestants=[encoder(name) for name in PAPER], points=points)]


def decode() -> list[Heat]:
    """A step of a decoder behind a long past, ours against others', and what positions cost."""
    llama = Checkpoint.drawn("llama")
    ours = llama.ours()
    taking_part = [
        decoder("nope"),
        llama.transformers(),
        ours,
        llama.ours("--cache", "static", name="posexport static", shared=True),
        of.eager(ours),
        of.eager(ours, compiled=True),
        *llama.rivals(),
        *(decoder(encoding) for encoding in DECODED[1:]),
    ]
    steps = Effort(warmup=4, runs=32, least=32)
    points = [Point(past=past) for past in (512, 2048)]
    return [Heat(model="llama shape", contestants=taking_part, points=points, effort=steps)]


def rivals() -> list[Heat]:
    """The same checkpoint through every exporter."""
    points = [Point(new=length) for length in (128, 512)]
    heats = []
    for name in ("bert-absolute", "bert-relative-key", "bert-relative-key-query", "t5"):
        checkpoint = Checkpoint.drawn(name)
        ours = checkpoint.ours()
        taking_part = [
            t5_floor() if name == "t5" else encoder("nope"),
            checkpoint.transformers("optimum"),
            ours,
            of.eager(ours),
            of.eager(ours, compiled=True),
            of.exported(ours),
            *checkpoint.rivals(),
        ]
        heats.append(Heat(model=name, contestants=taking_part, points=points))
    return heats


def attention() -> list[Heat]:
    """One layer: what relative_key adds to ONNX's own attention, and what its published form adds."""
    module = "posexport.bench.attention"
    recipe = Recipe(name="attention-floor", module=module, arguments=(f"{OUT}/model.onnx",))
    source = str(Path(__file__).with_name("attention.py"))
    floor = Contestant(
        name="nope, ai.onnx Attention", worker="onnx", recipe=recipe, model="model.onnx", vocab=2, weights="nope"
    )
    taking_part = [floor]
    for name, factory in (("relative-key", "ours"), ("published form", "published")):
        made = of.convert(f"{source}:{factory}", vocab=2, name=name)
        taking_part.append(replace(made, weights="relative-key"))
    points = [Point(new=length) for length in (128, 512, 1024, 2048)]
    return [Heat(model="one attention layer, 12 heads of 64", contestants=taking_part, points=points)]


SUITES: dict[str, Callable[[], list[Heat]]] = {
    "paper": paper,
    "decode": decode,
    "rivals": rivals,
    "attention": attention,
}


def chosen(heats: Sequence[Heat], *, rivals: Sequence[str], only: Sequence[str], points: Sequence[Point]) -> list[Heat]:
    """Heats with the floors, and of the others those of ``rivals`` (none: all) whose names hold a text of ``only``."""

    def wanted(who: Contestant) -> bool:
        named = not only or any(text in who.name for text in only)
        return named and (not rivals or who.rival is None or who.rival in rivals)

    kept = []
    for heat in heats:
        floor, *others = heat.contestants
        taking_part = [floor, *filter(wanted, others)]
        if len(taking_part) > 1 or not (only or rivals):
            kept.append(replace(heat, contestants=taking_part, points=list(points) or heat.points))
    return kept
