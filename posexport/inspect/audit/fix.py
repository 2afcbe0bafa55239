"""Repairs of an audited file: applied to a copy, which is compared with the file before it is written."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import onnx_ir as ir

from posexport.base.options.check import did_you_mean
from posexport.base.options.commands import AuditOptions
from posexport.base.system.files import check_free
from posexport.errors import PosexportError
from posexport.inspect.audit.registry import REPAIRS, RULES
from posexport.inspect.audit.repairs.compared import NotProvenError, compared
from posexport.inspect.audit.repairs.repair import NotRepairedError
from posexport.inspect.audit.repairs.write import Original
from posexport.inspect.audit.rule import name_of
from posexport.inspect.audit.subject import Subject
from posexport.run.bundle.directory import temporary

#: of the operators that repairs write: sizes of single axes (Shape's start)
_OPSET = 15
_ROUNDS = 20


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """What was repaired.

    Attributes:
        path: the file that was written.
        refused: why it was not written; empty if it was.
        repaired: (code, node) of every place.
        left: (code, node, why) of places that are as they were.
        nodes: how many nodes of the new file are not the old one's.
        functions: how many local functions of the old file are inlined in the new one.
        proof: sentences on calls of both files.
    """

    path: str
    refused: str = ""
    repaired: tuple[tuple[str, str], ...]
    left: tuple[tuple[str, str, str], ...]
    nodes: int
    functions: int = 0
    proof: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        for code, count in Counter(code for code, _ in self.repaired).items():
            places = f"{count} place" + "s" * (count != 1)
            yield f"{code}: {places}: {REPAIRS[code].does}"
        for code, node, why in self.left:
            yield f"{code} at {node!r} is as it was: {why}"
        if self.refused:
            yield f"{self.path} is not written: the repaired graph cannot be trusted: {self.refused}"
            return
        yield from self.proof
        inlined = f", its {self.functions} local functions are inlined" if self.functions else ""
        yield f"{self.path}: {self.nodes} nodes are new or changed, all others and all weights are the file's{inlined}"


def fix(
    path: Path, codes: Sequence[str], output: Path, *, force: bool = False, options: AuditOptions | None = None
) -> Repaired:
    """Repair the faults of the rules ``codes`` in ``path`` and write ``output``; all other nodes and weights stay.

    A copy that does not open, that cannot be compared, or that computes something else where the file was right is not
    written: see `Repaired.refused`.

    Args:
        options: the provider that the file is for, and limits of the calls that compare both files.

    Raises:
        PosexportError: a rule without a repair, a file where nothing can be repaired.
    """
    options = options or AuditOptions()
    for code in codes:
        if code not in REPAIRS.names:
            hint = did_you_mean(code, REPAIRS.names, f"there are some for {', '.join(REPAIRS.names)}")
            raise PosexportError(f"--fix {code}: there is no repair for this rule; {hint}")
    check_free(output, force=force)
    subject = Subject(path, provider=options.providers[0])
    if subject.opset() < _OPSET:
        raise PosexportError(
            f"{path} has opset {subject.opset()}, repairs are written in {_OPSET} and later; raise it with "
            "onnx.version_converter first"
        )
    original = Original(path, subject)
    changed: list[ir.Value] = []
    repaired, left, numbers = _rounds(subject, codes, changed)
    if not repaired:
        reasons = "; ".join(dict.fromkeys(reason for _, _, reason in left))
        raise PosexportError(
            f"{path} has nothing that {', '.join(codes)} can repair{f': {reasons}' if reasons else ''}; see posexport "
            "audit --details"
        )
    nodes, proof, refused = 0, list[str](), ""
    try:
        nodes, proof = _write(original, output, changed, sorted(numbers), options)
    except NotProvenError as err:
        refused = str(err)
    except OSError as err:
        raise PosexportError(f"cannot write {output}: {err.strerror or err}; choose another place") from err
    return Repaired(
        path=str(output),
        refused=refused,
        repaired=tuple(repaired),
        left=tuple(left),
        nodes=nodes,
        functions=original.functions,
        proof=tuple(proof),
    )


def _rounds(
    subject: Subject, codes: Sequence[str], changed: list[ir.Value]
) -> tuple[dict[tuple[str, str], None], list[tuple[str, str, str]], set[int]]:
    """What was repaired, what was left with the reasons, and numbers that may be sizes; adds to ``changed``."""
    repaired: dict[tuple[str, str], None] = {}
    left: list[tuple[str, str, str]] = []
    # sizes behind a repaired node are known only after it
    numbers: set[int] = set()
    for _ in range(_ROUNDS):
        numbers |= _numbers(subject)
        done, left = _round(subject, codes, changed)
        repaired |= dict.fromkeys(done)
        if not done:
            break
        subject.refresh()
    return repaired, left, numbers


def _write(
    original: Original, output: Path, changed: Sequence[ir.Value], numbers: Sequence[int], options: AuditOptions
) -> tuple[int, list[str]]:
    """Write the file if calls agree; returns how many nodes are new or changed, and the sentences on the calls."""
    # next to its place, so that moving it there is one step
    with temporary(output.absolute().parent, output.name) as folder:
        whole = folder / output.name
        nodes = original.save(whole, changed)
        proof = compared(original.path, whole, numbers, options)
        for name in original.external:
            if not (output.parent / name).exists():
                (output.parent / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).replace(output.parent / name)
        whole.replace(output)
    return nodes, proof


def _numbers(subject: Subject) -> set[int]:
    """Sizes of the example that a graph has where it needs free axes."""
    return {
        *(conflict.number for conflict in subject.conflicts),
        *(size for reshape in subject.fixed_reshapes for size in reshape.target if isinstance(size, int) and size > 0),
    }


def _round(
    subject: Subject, codes: Sequence[str], changed: list[ir.Value]
) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Repair every place that the rules see now; returns what was repaired, and what was not and why."""
    repaired: list[tuple[str, str]] = []
    left: list[tuple[str, str, str]] = []
    for code in codes:
        # two axes of a node are two places and one repair
        for name, place in {name_of(place.nodes[0]): place for place in RULES[code].check(subject)}.items():
            try:
                changed += REPAIRS[code].apply(subject, place)
            except NotRepairedError as err:
                left.append((code, name, str(err)))
            else:
                repaired.append((code, name))
    return repaired, left
