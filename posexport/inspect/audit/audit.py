"""Runs the rules over a file or a folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

from posexport.base.options.commands import AuditOptions
from posexport.base.targets.kernels import has_table
from posexport.base.targets.listed import LISTED, audited
from posexport.errors import PosexportError
from posexport.inspect.audit.analyses.recognised import recognised
from posexport.inspect.audit.calls.opened import opened
from posexport.inspect.audit.calls.ports import UnknownError
from posexport.inspect.audit.calls.process import EndedError
from posexport.inspect.audit.finding import SEVERITIES, Finding, Findings, Recognised
from posexport.inspect.audit.ledger.books import Books
from posexport.inspect.audit.ledger.proof import prove
from posexport.inspect.audit.registry import RULES
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.settings import check_codes
from posexport.inspect.audit.subject import Subject

#: the rule of the proof
PROOF = "PX604"
#: places of one rule in one file that become findings; the rest is a number
_PLACES = 3


def audit(path: Path, options: AuditOptions | None = None, progress: Callable[[str], None] | None = None) -> Findings:
    """What `posexport.audit` does: findings in ``path``, an .onnx or a folder with some.

    Raises PosexportError for a path without a graph, a damaged file, and an unknown rule.
    """
    options = options or AuditOptions()
    rules = chosen_rules(options)
    files = _files(path)
    listed = [name for name in options.providers if name in LISTED]
    if options.run and listed:
        raise PosexportError(
            f"--run calls the graph, which posexport cannot on {LISTED[listed[0]].label}; leave out --run or --provider"
        )
    books = None if options.against is None else Books(Path(options.against), files)
    unused = {"calls"} if not options.run else set()
    unused |= {"checkpoint"} if books is None else set()
    rules = [rule for rule in rules if rule.reads not in unused]
    findings: list[Finding] = []
    known: list[Recognised] = []
    skipped = _without_kernels(rules, options)
    for file in files:
        if progress is not None:
            progress(str(file))
        subject = Subject(file, provider=options.providers[0])
        name = _name(file, path)
        if books is not None:
            lines, reason = _compare(subject, books, by_proof=PROOF in [rule.code for rule in rules])
            known += [Recognised(file=name, kind=kind, what=what) for kind, what in lines]
            skipped |= {PROOF: reason} if reason else {}
        findings += _of_rules(rules, subject, name, options, skipped)
        known += recognised(subject, name)
    findings.sort(key=lambda finding: (-SEVERITIES.index(finding.severity), finding.code, finding.file))
    return Findings(
        path=str(path),
        findings=tuple(findings),
        recognised=tuple(known),
        files=tuple(_name(file, path) for file in files),
        rules=tuple(rule.code for rule in rules),
        skipped=skipped,
    )


def _without_kernels(rules: list[Rule], options: AuditOptions) -> dict[str, str]:
    """The rules about kernels, if there is no table of the provider's, with the reason: they find nothing."""
    provider = audited()[options.providers[0]]
    codes = [rule.code for rule in rules if rule.reads == "kernels"]
    if not codes or has_table(provider.ort_name):
        return {}
    return {", ".join(codes): f"kernels were not looked at, as there is no table of those of {provider.label}"}


def _of_rules(
    rules: list[Rule], subject: Subject, name: str, options: AuditOptions, skipped: dict[str, str]
) -> list[Finding]:
    """The findings of all rules in one file; ``skipped`` gets those that cannot run, with the reason."""
    findings: list[Finding] = []
    of_calls = [rule for rule in rules if rule.reads == "calls"]
    for rule in rules:
        if rule in of_calls:
            continue
        try:
            findings += list(_findings(rule, subject, name))
        except Exception as err:  # noqa: BLE001 (a damaged file must not hide what other rules find)
            skipped[f"{rule.code} on {name}"] = f"{type(err).__name__}: {err}"
    if of_calls:
        try:
            with opened(subject, options) as subject.calls:
                for rule in of_calls:
                    findings += _findings(rule, subject, name)
        except (UnknownError, EndedError) as err:
            skipped[f"PX7 on {name}"] = str(err)
    return findings


def _compare(subject: Subject, books: Books, *, by_proof: bool) -> tuple[list[tuple[str, str]], str]:
    """Make the subject's ledger and proof: a line on each, and the reason if there is no proof."""
    subject.ledger = books.of(subject.path)
    if subject.ledger is None:
        return [], ""
    lines = [("checkpoint", subject.ledger.summary())]
    if not by_proof:
        return lines, ""
    subject.proof = prove(subject.path, books.checkpoint)
    if subject.proof.passed:
        lines.append(("proof", subject.proof.text))
    return lines, subject.proof.text if subject.proof.passed is None else ""


def chosen_rules(options: AuditOptions) -> list[Rule]:
    """The rules that ``select`` and ``ignore`` leave, by code."""
    codes = sorted(RULES.names)
    check_codes(options.select, codes, "--select")
    check_codes(options.ignore, codes, "--ignore")
    selected = [code for code in codes if not options.select or code.startswith(tuple(options.select))]
    return [RULES[code] for code in selected if not options.ignore or not code.startswith(tuple(options.ignore))]


def _name(file: Path, path: Path) -> str:
    """How findings call ``file``: by its place in a folder, else by its name."""
    return file.relative_to(path).as_posix() if path.is_dir() else file.name


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        raise PosexportError(f"no such file or folder: {path}; give an .onnx file, or a folder that has some")
    # Hugging Face repositories have them in a folder of the name
    files = sorted(file for pattern in ("*.onnx", "onnx/*.onnx") for file in path.glob(pattern) if file.is_file())
    if not files:
        raise PosexportError(f"{path} has no .onnx file, nor has its folder onnx; give the file or its folder")
    return files


def _findings(rule: Rule, subject: Subject, file: str) -> Iterator[Finding]:
    """The findings of one rule; many places of one kind are one line with a number."""
    places = list(rule.check(subject))
    shown: list[Place] = places[:_PLACES]
    for number, place in enumerate(shown):
        yield Finding(
            code=rule.code,
            rule=rule.name,
            severity=place.severity or rule.severity,
            file=file,
            message=place.message,
            nodes=tuple(map(name_of, place.nodes)),
            remedy=place.remedy or rule.remedy,
            more=len(places) - len(shown) if number == len(shown) - 1 else 0,
        )
