"""What ONNX Runtime says of a graph, or a missed proof, in the lines of the user's module."""

from collections.abc import Iterator, Sequence

from posexport.errors import PosexportError
from posexport.export.build import Built
from posexport.parity.report.report import Report
from posexport.system.files import aside


def explained(name: str, built: Sequence[Built], err: PosexportError) -> PosexportError:
    """``err`` with the user's line in place of ONNX Runtime's words, where a row of the refusals knows them."""
    sentence = next((found for graph in built if (found := graph.written.about(str(err)))), None)
    if sentence is None:
        return err
    path = aside("posexport-run-", str(err) + "\n")
    return PosexportError(
        f"{name}: {sentence}" + ("" if path is None else f"; all that ONNX Runtime says is in {path}")
    )


def reasons(built: Sequence[Built], report: Report) -> Iterator[str]:
    """Sentences on the lines that a missed proof may come from."""
    notes = dict.fromkeys(point.note for point in report.points if point.verdict == "fail" and point.note)
    said = (graph.written.about(note) for graph in built for note in notes)
    yield from dict.fromkeys(sentence for sentence in said if sentence is not None)
    for graph in built:
        yield from graph.written.reasons()
