"""Inputs that ask for what is not there: beyond the table, ids out of range, rows without tokens, unused slots."""

from typing import TYPE_CHECKING, Any

import numpy as np
from bundles import case_of, converted, first, ids, opened, same
from part import Part, Row, Setup

if TYPE_CHECKING:
    from posexport.run.session import Session

#: of the garbage in unused slots, finite, as posexport.base.targets.providers.CUDA needs it
GARBAGE = (1.0, 6e4, -6e4)
#: rows beside an empty one have other shapes of kernels than alone, in eps of the precision
NEAR = 64


def cases(setup: Setup) -> list[str]:
    """What is asked, of which model."""
    found = [f"guard: {name}" for name in ("encoder-absolute fp16", "decoder-learned fp16", "encoder-absolute fp32")]
    found += [f"ids: encoder-{name}" for name in ("nope fp16", "relative-key fp16", "nope fp32")]
    found += [f"empty: encoder-{name} {p}" for p in ("fp16", "fp32") for name in ("nope", "rope", "t5", "deberta")]
    found += [f"slots: decoder-{name} fp16 static cache" for name in ("nope", "rope", "alibi", "relative-key")]
    return setup.few(
        found,
        "guard: encoder-absolute fp32",
        "ids: encoder-nope fp32",
        "empty: encoder-t5 fp32",
        "slots: decoder-rope fp16 static cache",
    )


def run(name: str, setup: Setup) -> Row:
    """One question to one model; the model must answer a plain call afterwards as before."""
    kind, _, model = name.partition(": ")
    with converted(case_of(model), setup) as bundle:
        session = opened(bundle, setup)
        if kind == "slots":
            return slots(session)
        plain = ids(session, 2, 9)
        output = first(session)
        before = session.run(plain, outputs=[output])[output]
        row = {"guard": guard, "ids": out_of_range, "empty": empty}[kind](session)
        after = session.run(plain, outputs=[output])[output]
    if row["passed"] and not same(before, after):
        return {**row, "passed": False, "note": "a plain call gives other bits afterwards"}
    return row


def guard(session: "Session") -> Row:
    """One token too many, past the checks of `Session.run`: the graph itself must refuse, by its message."""
    limit = session.manifest.limits.max_length
    assert limit is not None
    message = raw(session, {**ids(session, 1, limit + 1)})
    passed = isinstance(message, str) and f"longer than {limit} positions" in message
    return {"passed": passed, "note": "" if passed else f"{limit + 1} tokens: {message!r:.300}"}


def out_of_range(session: "Session") -> Row:
    """Ids that no embedding has: `Session.run` refuses; the graph may answer anything but must not break the device."""
    from posexport.errors import PosexportError

    feeds = ids(session, 1, 8)
    (name,) = feeds
    feeds[name][0, 3] = 10**6
    try:
        session.run(feeds)
    except PosexportError as err:
        answer = raw(session, feeds)
        what = answer[:200] if isinstance(answer, str) else "an answer"
        return {"passed": True, "note": "", "said": str(err), "graph": what}
    return {"passed": False, "note": "Session.run takes an id of 1000000"}


def empty(session: "Session") -> Row:
    """A row of padding alone: no NaN in it, and the rows beside it as without it."""
    feeds, output = ids(session, 3, 24), first(session)
    mask = np.ones((3, 24), np.int64)
    mask[1] = 0
    mask[2, 7:] = 0
    whole = session.run({**feeds, "attention_mask": mask}, outputs=[output])[output]
    kept = {name: array[[0, 2]] for name, array in {**feeds, "attention_mask": mask}.items()}
    wanted = session.run(kept, outputs=[output])[output]
    real = mask[[0, 2]].astype(bool)
    gap = float(np.abs(whole[[0, 2]].astype(np.float64) - wanted)[real].max() / np.abs(wanted.astype(np.float64)).max())
    eps = 2.0**-10 if session.manifest.precision == "fp16" else 2.0**-23
    passed = bool(np.isfinite(whole.astype(np.float64)).all()) and gap <= NEAR * eps
    return {
        "passed": passed,
        "note": "" if passed else f"not finite, or rows beside it change by {gap:.1e}",
        "gap": gap,
    }


def slots(session: "Session") -> Row:
    """Prompts and steps in a static KV cache whose unused slots hold garbage: the logits of zeros there.

    Prompts of different lengths are padded on the left, so that the mask is a bias; a single one is not.
    """
    from posexport.run import cache

    found = []
    plain = cache.Cache.clear
    try:
        for filling in (0.0, *GARBAGE):
            cache.Cache.clear = filled(plain, filling)  # type: ignore[method-assign]
            read, logits = cache.Cache.read, []
            cache.Cache.read = noted(read, logits)  # type: ignore[method-assign]
            try:
                session.generate([[5, 2, 7, 1, 9], [3, 4]], max_new_tokens=3)
                session.generate([[5, 2, 7, 1, 9, 8, 6]], max_new_tokens=3)
            finally:
                cache.Cache.read = read  # type: ignore[method-assign]
            found.append(logits)
    finally:
        cache.Cache.clear = plain  # type: ignore[method-assign]
    wrong = [
        filling
        for filling, logits in zip(GARBAGE, found[1:], strict=True)
        if not all(same(a, b) for a, b in zip(found[0], logits, strict=True))
    ]
    return {"passed": not wrong, "note": f"{wrong} in unused slots changes logits" if wrong else ""}


def filled(clear: Any, value: float) -> Any:
    """`Cache.clear` that leaves ``value`` in every slot."""

    def clear_with(self: Any, rows: int) -> None:
        from posexport.run.ort_values import to_array

        clear(self, rows)
        for name, held in self._held.items():
            array = np.full_like(to_array(held), value)
            assert array.size, "the cache has no slots"
            self._held[name] = self._on_device(array)

    return clear_with


def noted(read: Any, logits: list[Any]) -> Any:
    """`Cache.read` that keeps its logits."""

    def read_and_note(self: Any, *arguments: Any) -> Any:
        answer = read(self, *arguments)
        logits.append(answer.copy())
        return answer

    return read_and_note


def raw(session: "Session", feeds: dict[str, Any]) -> Any:
    """What the graph answers where `Session.run` would not ask it; its message where it refuses."""
    from posexport.run.feeds import prepare

    # the checks are those of sizes and ids: fed in range and then replaced, so that defaults are filled in
    harmless = {name: np.zeros_like(array) for name, array in feeds.items()}
    limits = type(session.manifest.limits)()
    arrays = {**prepare(harmless, session.inputs, limits), **feeds}
    try:
        return session._chain.run([first(session)], arrays)[0].shape  # noqa: SLF001  # past the checks
    except Exception as err:  # noqa: BLE001  # whatever ONNX Runtime raises is the answer
        return " ".join(str(err).split())


PART = Part("limits", "guards, ids out of range, rows without tokens, garbage in unused slots", cases, run)
