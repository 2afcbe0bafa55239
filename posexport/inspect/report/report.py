"""One HTML file about a bundle, from its manifest and proof, its graphs, and a few calls on this machine.

Needs no PyTorch. A section that needs a library or a file that is missing has a sentence about that instead.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from posexport.base.system.extras import explain_missing
from posexport.base.system.files import check_free, size_text, without_folders, write_whole
from posexport.errors import PosexportError
from posexport.inspect import pages
from posexport.inspect.report import facts, speed
from posexport.inspect.report.proof import SHADES, pictures
from posexport.proof.report.report import Report
from posexport.run.bundle.manifest import PARITY, Manifest
from posexport.run.bundle.read import check_hashes, locate, read
from posexport.version import VERSION

if TYPE_CHECKING:
    from posexport.inspect.report.answers import TextAnswers
    from posexport.inspect.report.audited import Audited
    from posexport.inspect.report.drawings import Figure
    from posexport.inspect.report.kernels import Placement, Time

_T = TypeVar("_T")
_STEPS = (
    "drawing positions",
    "looking up kernels",
    "auditing",
    "checking the sample",
    "timing a call",
    "answering texts",
)


class Section:
    """A section's content, or the sentence that says why there is none."""

    def __init__(self, value: Any = None, missing: str = "") -> None:
        self.value, self.missing = value, missing


def report(
    directory: Path,
    output: Path,
    *,
    bench: Sequence[Path] = (),
    texts: Sequence[str] = (),
    run: bool = True,
    force: bool = False,
    about: Mapping[str, str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Write the page about the bundle in ``directory`` to the file ``output``.

    Args:
        directory: a bundle.
        output: the file, which must not exist unless ``force``.
        bench: documents of ``posexport bench -o``.
        texts: inputs that are answered, in place of sentences that fit the task.
        run: call the model: check its sample, time a call, answer texts.
        force: replace the file.
        about: what encodings do, by their names.
        progress: called with the finished steps, their total, and the current step.

    Raises:
        PosexportError: no bundle, an altered file, a file of ``bench`` that is none, an output that cannot be written.
    """
    check_free(output, force=force)
    tell = progress or (lambda *_: None)
    steps = iter(enumerate(_STEPS))

    def section(make: Callable[[], Any]) -> Section:
        number, words = next(steps)
        tell(number, len(_STEPS), words)
        return _section(make, directory)

    manifest = read(directory)
    check_hashes(directory, manifest)
    benchmarks = [speed.speed(speed.read(path)) for path in bench]
    proof = _proof(directory, manifest)
    off = Section(missing="The model was not called (--no-run).")
    sections = {
        "drawn": section(lambda: _figures(directory, manifest)),
        "placed": section(lambda: _placements(directory, manifest)),
        "audit": section(lambda: _audited(directory)),
        "checked": section(lambda: _checked(directory)) if run else off,
        "timed": section(lambda: _timed(directory)) if run else off,
        "answered": section(lambda: _answered(directory, manifest, texts)) if run else Section(),
    }
    page = _page(directory.resolve().name, manifest, proof, about=about or {}, benchmarks=benchmarks, **sections)
    write_whole(output, page, force=force)


def _page(name: str, manifest: Manifest, proof: Report | None, **sections: Any) -> bytes:
    drawn_proof = pictures(proof, limit=manifest.limits.max_length) if proof else None
    return pages.render(
        "report.html",
        name=name,
        manifest=manifest,
        verdict=proof.verdict if proof else "not proven: nothing was checked",
        summary=f"{proof.describe()}."
        if proof
        else "The bundle was written with --no-verify; prove it with posexport verify.",
        proof=proof,
        pictures=drawn_proof,
        points=_as_script(drawn_proof.details) if drawn_proof else "",
        counts=_counts(proof) if proof else [],
        shades=[f"{100 * end:.0f}%" for end in SHADES],
        meaning=facts.meaning(manifest),
        facts=facts.facts(manifest),
        limits=facts.limits(manifest),
        tensors=facts.tensors(manifest),
        layers=facts.layers(manifest),
        agreements=facts.agreements(manifest),
        commands=facts.commands(manifest, name),
        passes=[(title, spec) for title, spec in manifest.passes.items() if spec.nodes],
        files=[(file, size_text(entry.size), entry.sha256) for file, entry in sorted(manifest.files.items())],
        today=datetime.now(UTC).date().isoformat(),
        version=VERSION,
        **sections,
    )


def _section(make: Callable[[], Any], directory: Path) -> Section:
    try:
        return Section(make())
    except PosexportError as err:
        sentence = without_folders(str(err), str(directory))
        first = sentence.partition(" ")[0]
        return Section(missing=f"{sentence if '.' in first else sentence[:1].upper() + sentence[1:]}.")
    except ModuleNotFoundError as err:
        if (needed := explain_missing(err, "This part")) is None:
            raise
        return Section(missing=f"{needed}.")


def _proof(directory: Path, manifest: Manifest) -> Report | None:
    if manifest.parity is None or PARITY not in manifest.files:
        return None
    return Report.from_json(locate(directory, PARITY).read_bytes())


def _as_script(value: object) -> str:
    """A value as JSON for a script element."""
    data = msgspec.json.encode(value).decode()
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _counts(proof: Report) -> list[tuple[str, str]]:
    """What was checked, with its result."""
    counts = proof.summary()
    rows = [
        ("comparisons within their tolerance", f"{counts.passed} of {counts.points - counts.rejected - counts.skipped}")
    ]
    if counts.rejected:
        rows.append(("inputs outside the limits, refused", str(counts.rejected)))
    if counts.skipped:
        rows.append(("points that were skipped", str(counts.skipped)))
    medians = max((item.ratio for item in proof.medians), default=None)
    if medians is not None:
        rows.append(("median error relative to PyTorch's", f"at most {medians:.2g} times"))
    for name in dict.fromkeys(item.name for item in proof.invariants):
        verdicts = {item.verdict for item in proof.invariants if item.name == name}
        rows.append((name, "fail" if "fail" in verdicts else "yes" if "pass" in verdicts else "skipped"))
    if proof.coverage:
        ran = len(proof.coverage) - len(proof.unreached)
        rows.append(("branches of the graph that ran", f"{ran} of {len(proof.coverage)}"))
    return rows


def _figures(directory: Path, manifest: Manifest) -> "list[tuple[str, list[Figure]]]":
    from posexport.inspect.report.drawings import figures
    from posexport.inspect.report.positions import positions

    return [(file, figures(drawn)) for file, drawn in positions(directory, manifest).items()]


def _placements(directory: Path, manifest: Manifest) -> "list[Placement]":
    from posexport.inspect.report.kernels import placements

    return placements(directory, manifest)


def _audited(directory: Path) -> "Audited":
    from posexport.inspect.report.audited import audited

    return audited(directory)


def _checked(directory: Path) -> str:
    """The stored sample on this machine, in a sentence."""
    from posexport.conversion.verification import verify

    done = verify(directory)
    counts = done.summary()
    if not done.passed:
        return f"The stored sample fails here: {done.describe()}."
    noun = "comparison" if counts.passed == 1 else "comparisons"
    return f"The stored sample is right here: {counts.passed} {noun} on {done.provider} within the tolerance."


def _timed(directory: Path) -> "tuple[str, str, list[Time]]":
    from posexport.inspect.explain.explanation import explain
    from posexport.inspect.report.kernels import times

    done = explain(directory)
    return done.call, done.onnxruntime, times(done)


def _answered(directory: Path, manifest: Manifest, texts: Sequence[str]) -> "TextAnswers | None":
    from posexport.inspect.report.answers import answers, takes_texts

    return answers(directory, manifest, texts) if takes_texts(manifest) or texts else None
