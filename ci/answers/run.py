"""Asks posexport and the original library the same things: ``python -m ci.answers.run [PART...] [--into FOLDER]``.

Every module beside this one that has ``cases(work)`` is a part; it builds tiny checkpoints with the library that is
installed and yields a `Case` for each question. Prints a table and writes ci/results/answers-MAJOR.json, MAJOR being
the version of transformers; rows of parts that were not asked stay there. Exit code 1 where an answer differs without a
remark.
"""

import argparse
import importlib
import json
import pkgutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from ci.answers.case import Case

HERE = Path(__file__).parent
SHOWN = 60


def parts() -> list[str]:
    """Names of the modules that ask."""
    names = (module.name for module in pkgutil.iter_modules([str(HERE)]))
    return [name for name in names if name not in ("case", "run")]


def asked(name: str, work: Path) -> Iterator[Case]:
    """The rows of one part; where it fails, the row that says so."""
    module = importlib.import_module(f"ci.answers.{name}")
    if not hasattr(module, "cases"):
        return
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield from module.cases(work)
    except Exception as err:  # noqa: BLE001 (a part that fails leaves the others their rows)
        traceback.print_exc()
        failed = f"{type(err).__name__}: {err}"
        yield Case(part=name, asked="(the part itself)", library="", ours=failed, theirs="", equal=False)


def verdict(case: Case) -> str:
    return "equal" if case.equal else "remark" if case.remark else "DIFFERS"


def short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _record(rows: list[dict[str, object]], modules: list[str]) -> None:
    """Replaces the rows of ``modules`` in the file of this version of transformers."""
    target = HERE.parent / "results" / f"answers-{version('transformers').partition('.')[0]}.json"
    before = json.loads(target.read_text())["rows"] if target.is_file() else []
    kept = [row for row in before if row["module"] not in modules]
    libraries = ("transformers", "sentence-transformers", "tokenizers", "onnxruntime", "torch")
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: version(name) for name in libraries},
        "rows": sorted([*kept, *rows], key=lambda row: parts().index(str(row["module"]))),
    }
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--into", type=Path, help="where checkpoints and bundles are made; default: a temporary folder")
    parser.add_argument("--no-record", action="store_true", help="leave ci/results as it is")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(parts()):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts())}")
    rows: list[Case] = []
    module_of: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        into = chosen.into or Path(temporary)
        for name in chosen.parts or parts():
            for case in asked(name, into / name):
                module_of[len(rows)] = name
                rows.append(case)
                print(f"{verdict(case):7}  {case.part}: {case.asked}", flush=True)
                if not case.equal:
                    print(f"         ours:   {short(case.ours)}\n         theirs: {short(case.theirs)}", flush=True)
                    print(f"         remark: {case.remark}" if case.remark else "", flush=True)
    different = [case for case in rows if verdict(case) == "DIFFERS"]
    counts = {word: sum(verdict(case) == word for case in rows) for word in ("equal", "remark", "DIFFERS")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    if chosen.no_record:
        return 1 if different else 0
    _record(
        [
            {**asdict(case), "ours": short(case.ours), "theirs": short(case.theirs), "verdict": verdict(case)}
            # folders that are gone say nothing
            | {"module": module_of[number], "remark": case.remark.replace(f"{into / module_of[number]}/", "")}
            for number, case in enumerate(rows)
        ],
        chosen.parts or parts(),
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
