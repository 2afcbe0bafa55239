"""Every encoding and every golden family on CUDA against float64 on the card, at the boundaries of its kernels."""

from functools import partial

import points
from bundles import NotConvertedError, case_of, converted
from part import Part, Row, Setup

#: points of a case, by precision: of built-in models, of golden checkpoints
COUNTS = {"fp32": (3, 2), "fp16": (3, 2), "bf16": (2, 1), "int4": (2, 1)}
#: all parts together have at most so many
MOST = 1500


def encodings(precision: str, setup: Setup) -> list[str]:
    """Encoders and decoders of every encoding, and decoders with a static KV cache."""
    from cases import TELLING

    from posexport.sources import builtin

    names = [n for n in builtin.models() if n.startswith(("encoder-", "decoder-"))]
    names = [n for n in names if not n.startswith("encoder-decoder-")]
    static = [f"decoder-{encoding} {precision} static cache" for encoding in TELLING]
    rest = [f"encoder-decoder-{encoding}" for encoding in TELLING]
    cases = [f"{name} {precision}" for name in (*names, *rest)] + static
    telling = (f"encoder-t5 {precision}", f"decoder-rope {precision}", f"decoder-nope {precision} static cache")
    return setup.few(cases, *(telling if precision != "bf16" else telling[:1]))


def families(precision: str, setup: Setup) -> list[str]:
    """The first golden checkpoint of every family."""
    from cases import GOLDEN

    names = sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file())
    first = [n for i, n in enumerate(names) if i == 0 or n.partition("-")[0] != names[i - 1].partition("-")[0]]
    cases = [f"{name} {precision}" for name in first]
    return setup.few(cases, f"bert-absolute {precision}", f"vit-forimageclassification {precision}")


def telling(setup: Setup) -> list[str]:
    """A few models, with TF32."""
    from cases import TELLING

    cases = [f"{kind}-{encoding} fp32" for kind in ("encoder", "decoder") for encoding in TELLING]
    return setup.few(cases, "encoder-rope fp32")


def run(name: str, setup: Setup, *, tf32: bool = False) -> Row:
    """Prove one case at its points; one that is not converted is told so, and is no failure of the card."""
    try:
        return proven(name, setup, tf32=tf32)
    except NotConvertedError as err:
        return {"passed": True, "note": f"not converted: {err}"}


def proven(name: str, setup: Setup, *, tf32: bool) -> Row:
    """The proof of one case."""
    from posexport.conversion.verification import source_again
    from posexport.proof.choose import ProofOptions, prove_model
    from posexport.run.bundle.manifest import model_of

    case = case_of(name)
    index = index_of(name)
    count = COUNTS[case.precision][case.golden]
    with converted(case, setup) as bundle:
        source = source_again(bundle, case.source())
        longest = points.LITTLE if setup.rehearsal else 4096
        lengths = points.lengths_of(source.limits, index, count, longest)
        sized = bool(source.limits.proof_image_sizes or source.limits.proof_sizes)
        allow_tf32(setup, tf32=tf32)
        wishes = ProofOptions(
            provider=setup.provider,
            precision=case.precision,
            lengths=None if sized else lengths,
            some=points.some(index, count),
            reference_device=setup.torch_device,
            provider_options={"tf32": True} if tf32 and setup.provider == "cuda" else {},
        )
        report = prove_model(source, model_of(bundle, source.parts), wishes)
    return {
        "passed": report.passed,
        "note": "" if report.passed else report.describe(),
        "strays": report.wrong_provider,
        "emulated": report.emulated,
        "points": [
            [
                f"{p.length} b{p.batch} {p.padding} {'+'.join(map(str, p.calls))}".strip(),
                p.output,
                p.error,
                p.baseline_error,
                p.tolerance,
                p.verdict,
            ]
            for p in report.points
        ],
    }


def index_of(name: str) -> int:
    """Which lengths and paddings a case gets: others with each precision, so that all together see the most."""
    precision = name.split()[1]
    order = [*encodings(precision, Setup()), *families(precision, Setup())]
    return order.index(name) + 31 * list(COUNTS).index(precision)


def allow_tf32(setup: Setup, *, tf32: bool) -> None:
    """Whether PyTorch's float32, whose error makes the tolerance, uses it too."""
    import torch

    if setup.torch_device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def _part(kind: str, precision: str) -> Part:
    chosen = encodings if kind == "encodings" else families
    what = "every encoding" if kind == "encodings" else "every golden family"
    return Part(f"{kind}-{precision}", f"{what} in {precision} against float64", partial(chosen, precision), run)


ENCODINGS_FP16, ENCODINGS_FP32, ENCODINGS_BF16, ENCODINGS_INT4 = (
    _part("encodings", precision) for precision in ("fp16", "fp32", "bf16", "int4")
)
GOLDEN_FP16, GOLDEN_FP32, GOLDEN_BF16, GOLDEN_INT4 = (
    _part("golden", precision) for precision in ("fp16", "fp32", "bf16", "int4")
)
TF32 = Part("tf32", "fp32 with TF32 against PyTorch's float32 with TF32", telling, partial(run, tf32=True))
