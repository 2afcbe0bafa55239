"""What the named suites measure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from posexport.bench import contestants as of
from posexport.bench.contestants import Checkpoint, Contestant
from posexport.bench.measure_suite import Heat
from posexport.bench.recipes import OUT, Recipe
from posexport.bench.records import Point
from posexport.bench.turns import Effort

#: sizes of BERT-base, with tables for the longest length of the suites
BERT = ("vocab=30522", "hidden=768", "layers=12", "heads=12", "feedforward=3072", "max_positions=2048")
#: the same with two layers: attention has its share of a layer's time
FEW_LAYERS = ("vocab=30522", "hidden=768", "layers=2", "heads=12", "feedforward=3072", "max_positions=4096")
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
PORTABLE = "BERT-base shape, portable"
#: bytes for each pair of a query and a key that ONNX Runtime 1.31 was seen to take in the attention layer
_SCORES, _PUBLISHED = 12 * 4, 1600
DECODED = ("nope", "rope", "alibi", "t5", "relative-key")


#: lengths of an encoder's calls, and tokens in a decoder's cache
LENGTHS, PASTS = (128, 512, 2048), (512, 2048)
#: seconds after which a run of ``paper`` leaves portable graphs out: those take some 8 minutes
_TIME_LEFT = 1200.0


def encoder(encoding: str, target: str) -> Contestant:
    """An encoder of BERT-base's shape."""
    return _made(f"encoder-{encoding}", BERT, target, vocab=30522)


def t5_floor(target: str) -> Contestant:
    """An encoder of T5-base's shape without positions."""
    return of.convert("encoder-nope", *of.settings(T5), "--for", target, vocab=32128, name="encoder-nope of T5's shape")


def decoder(encoding: str, target: str, *, static: bool = False) -> Contestant:
    """A decoder of the Llama-like shape, with a growing cache or one buffer."""
    made = _made(f"decoder-{encoding}", LLAMA, target, *(("--cache", "static") if static else ()), vocab=32000)
    if not static:
        return made
    assert made.recipe is not None
    return replace(
        made,
        name=f"{made.name} static",
        recipe=replace(made.recipe, name=f"{made.recipe.name}-static"),
        options={"shared": True},
    )


def _made(source: str, sizes: Sequence[str], target: str, *options: str, vocab: int) -> Contestant:
    """A model of ours; those made for anything are called portable. All targets have the same weights."""
    name = f"{source} portable" if target == "portable" else source
    made = of.convert(source, *of.settings(sizes), "--for", target, *options, vocab=vocab, name=name)
    return replace(made, weights=source)


def paper(target: str = "cpu") -> list[Heat]:
    """What positions cost a whole encoder; if time allows, also in standard operators alone."""
    floor = encoder("nope", target)
    points = [Point(new=length) for length in LENGTHS]
    shape, few = "BERT-base shape", Effort(least=2)  # calls of 2048 tokens take seconds: all is to end in 30 minutes
    heats = [Heat(model=shape, contestants=[encoder(name, target) for name in PAPER], points=points, effort=few)]
    if target != "portable":
        portable = [floor, *(encoder(name, "portable") for name in PAPER)]
        heats.append(Heat(model=PORTABLE, contestants=portable, points=[Point(new=512)], within=_TIME_LEFT))
    return heats


def decode(target: str = "cpu") -> list[Heat]:
    """A step of a decoder behind a long past, ours against others', and what positions cost."""
    llama = Checkpoint.drawn("llama")
    ours = llama.ours("--for", target)
    taking_part = [
        decoder("nope", target),
        llama.reading(),
        llama.transformers(),
        ours,
        llama.ours("--for", target, "--cache", "static", name="posexport static", shared=True),
        llama.ours("--for", "portable", name="posexport portable"),
        decoder("nope", target, static=True),
        of.eager(ours),
        of.eager(ours, compiled=True),
        *llama.rivals(),
        *(decoder(encoding, target) for encoding in DECODED[1:]),
    ]
    steps = Effort(warmup=4, runs=32, least=32)
    points = [Point(past=past) for past in PASTS]
    return [Heat(model="llama shape", contestants=taking_part, points=points, effort=steps)]


def rivals(target: str = "cpu") -> list[Heat]:
    """The same checkpoint through every exporter."""
    points = [Point(new=length) for length in (128, 512)]
    heats = []
    for name in ("bert-absolute", "bert-relative-key", "bert-relative-key-query", "t5"):
        checkpoint = Checkpoint.drawn(name)
        ours = checkpoint.ours("--for", target)
        taking_part = [
            t5_floor(target) if name == "t5" else encoder("nope", target),
            checkpoint.transformers(),
            ours,
            checkpoint.ours("--for", "portable", name="posexport portable"),
            of.eager(ours),
            of.eager(ours, compiled=True),
            *checkpoint.rivals(),
        ]
        heats.append(Heat(model=name, contestants=taking_part, points=points))
    return heats


def lowerings(target: str = "cpu") -> list[Heat]:
    """What the planner takes against every single lowering that can stand for it, from short calls to long ones."""
    heats = []
    for encoding in ("alibi", "relative-key", "relative-key-query"):
        source = f"encoder-{encoding}"
        options = (*of.settings(FEW_LAYERS), "--for", target, "--lowering")
        taking_part = [
            of.convert(source, *options, name, vocab=30522, name=f"{source} {name}")
            for name in ("auto", "formula", "chunked", "blockwise", "attention", "multi-head")
        ]
        points = [Point(new=length) for length in (32, *LENGTHS, 4096)]
        same = [replace(who, weights=source) for who in taking_part]
        heats.append(Heat(model=f"{source}, 2 layers", contestants=same, points=points, effort=Effort(least=2)))
    return heats


def attention(target: str = "cpu") -> list[Heat]:
    """One layer: what relative_key adds to ONNX's own attention, and what its published form adds."""
    published = replace(_layer("published form", "published", "portable"), pair_bytes=_PUBLISHED)
    taking_part = [_layer_floor(), _layer("relative-key", "ours", target), published]
    points = [Point(new=128 << doubled) for doubled in range(7)]
    return [Heat(model="one attention layer, 12 heads of 64", contestants=taking_part, points=points)]


def growth(target: str = "cpu") -> list[Heat]:
    """One layer of relative_key as the length doubles and doubles again; ONNX's own attention while memory lasts."""
    taking_part = [_layer_floor(), _layer("relative-key", "ours", target)]
    points = [Point(new=256 << doubled) for doubled in range(7)]
    few = Effort(least=2)  # a call of the floor at the end takes half a minute
    return [Heat(model="one attention layer, 12 heads of 64", contestants=taking_part, points=points, effort=few)]


def _layer_floor() -> Contestant:
    recipe = Recipe(name="attention-floor", module="posexport.bench.attention", arguments=(f"{OUT}/model.onnx",))
    return Contestant(
        name="nope, ai.onnx Attention",
        worker="onnx",
        recipe=recipe,
        model="model.onnx",
        vocab=2,
        weights="nope",
        pair_bytes=_SCORES,
    )


def _layer(name: str, factory: str, target: str) -> Contestant:
    source = str(Path(__file__).with_name("attention.py"))
    made = of.convert(f"{source}:{factory}", "--for", target, vocab=2, name=name)
    return replace(made, weights="relative-key")


#: gives what is made for a target, by the name of ``convert --for``
SUITES: dict[str, Callable[..., list[Heat]]] = {
    "paper": paper,
    "decode": decode,
    "rivals": rivals,
    "lowerings": lowerings,
    "attention": attention,
    "growth": growth,
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
