"""Whether the same call gives the same bits, 20 times."""

from bundles import case_of, converted, first, ids, opened, same
from part import Part, Row, Setup

RUNS = 20


def cases(setup: Setup) -> list[str]:
    """Encoders and decoders of telling encodings."""
    from cases import TELLING

    names = [f"{kind}-{encoding}" for kind in ("encoder", "decoder") for encoding in TELLING]
    found = [f"{name} {precision}" for precision in ("fp16", "fp32") for name in names]
    return setup.few(found, "encoder-relative-key fp32")


def run(name: str, setup: Setup) -> Row:
    """At a length of every kind of attention kernel, other calls between."""
    with converted(case_of(name), setup) as bundle:
        session = opened(bundle, setup)
        differing = {}
        for length in (17, 65) if setup.rehearsal else (17, 128, 513, 2048):
            feeds, output = ids(session, 2, length), first(session)
            wanted = session.run(feeds, outputs=[output])[output]
            session.run(ids(session, 1, length + 1), outputs=[output])
            others = (session.run(feeds, outputs=[output])[output] for _ in range(RUNS - 1))
            differing[length] = sum(not same(wanted, other) for other in others)
    wrong = {length: count for length, count in differing.items() if count}
    note = f"of {RUNS} runs others give other bits, by length: {wrong}" if wrong else ""
    return {"passed": not wrong, "note": note, "differing": differing}


PART = Part("determinism", f"the same bits in {RUNS} runs", cases, run)
