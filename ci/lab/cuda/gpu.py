"""Everything that needs a card, in parts that go on where they stopped; the most valuable part comes first.

Without PART all parts run in order until --minutes are over; the same command goes on. Every case is in the file as
soon as it is done. Exit code 0: all that ran has passed; 1: something failed, named at the end; 2: no CUDA.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import processes
from part import Part
from parts import BY_NAME, PARTS
from state import State

FILE = "gpu.json"
RESULTS = Path("ci/results")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ci/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of --list, PART:N: its first N cases; default: all")
    parser.add_argument("--list", action="store_true", help="name the parts, and how far each is")
    parser.add_argument("--minutes", type=float, default=8, help="begin no further case after so many; default: 8")
    parser.add_argument("--anew", action="store_true", help="forget what the file has")
    parser.add_argument("--again", action="store_true", help="forget what failed, which then runs once more")
    parser.add_argument(
        "--rehearse", action="store_true", help="few little models on the CPU and the dry run's stand-ins, one broken"
    )
    parser.add_argument("-o", "--output", type=Path, help=f"default: $OUT/{FILE}, else {RESULTS / FILE}")
    args = parser.parse_args(argv)
    known = [part for part in PARTS if args.rehearse or not part.rehearsed]
    counts = {name: int(count or sys.maxsize) for name, _, count in (given.partition(":") for given in args.parts)}
    if unknown := [name for name in counts if name not in {part.name for part in known}]:
        print(f"ci/gpu: unknown part {unknown[0]}; known: {', '.join(part.name for part in known)}", file=sys.stderr)
        return 2
    chosen = [first(BY_NAME[name], count) for name, count in counts.items()] or known
    output = args.output or (Path(os.environ["OUT"]) if "OUT" in os.environ else RESULTS) / FILE
    state = State(output, None if args.output or args.rehearse else RESULTS / FILE, anew=args.anew, again=args.again)
    if args.list:
        for part in known:
            print(_progress(part, state, args.rehearse))
        return 0
    if reason := _missing(args.rehearse):
        print(f"ci/gpu: {reason}", file=sys.stderr)
        return 2
    ends = time.monotonic() + 60 * args.minutes
    _run(chosen, state, ends, args.rehearse)
    for part in chosen:
        print(_progress(part, state, args.rehearse))
    return _end(chosen, state, args.rehearse)


def first(part: Part, count: int) -> Part:
    """With at most ``count`` of its cases."""
    return dataclasses.replace(part, cases=lambda setup: part.cases(setup)[:count])


def _run(parts: Sequence[Part], state: State, ends: float, rehearse: bool) -> None:
    missing = [(each, case) for each in parts for case in state.missing(each.name, each.cases(each.setup(rehearse)))]
    for part, case, row in processes.run(missing, ends, rehearse=rehearse):
        state.add(part.name, case, row)
        verdict = "passed" if row["passed"] else "FAILED"
        print(f"{verdict} {part.name:16} {case:44} {row['seconds']:6.1f} s  {row.get('note', '')[:200]}", flush=True)


def _end(chosen: list[Part], state: State, rehearse: bool) -> int:
    """What is left, and what failed in any run that the file knows."""
    state.write()  # what an older file has, too
    left = sum(len(state.missing(part.name, part.cases(part.setup(rehearse)))) for part in chosen)
    print(f"wrote {state.path}" + (f"; {left} cases are left, the same command goes on" if left else ""))
    failed = [name for name in state.failed() if name.partition(": ")[0] in {part.name for part in chosen}]
    for name in failed:
        print(f"ci/gpu: FAILED {name}", file=sys.stderr)
    return 1 if failed else 0


def _progress(part: Part, state: State, rehearse: bool) -> str:
    cases = part.cases(part.setup(rehearse))
    rows = [state.parts.get(part.name, {}).get(case) for case in cases]
    failed = sum(row is not None and not row["passed"] for row in rows)
    done = sum(row is not None for row in rows)
    return f"{part.name:16} {done:3} of {len(cases):3} done, {failed} failed   {part.what}"


def _missing(rehearse: bool) -> str | None:
    """Why nothing can run here."""
    from posexport.errors import PosexportError
    from posexport.run.providers import check_loads, quiet

    if rehearse:
        from libraries import missing

        return missing()
    quiet()
    try:
        check_loads("cuda")
    except PosexportError as err:
        return str(err)
    import torch

    return None if torch.cuda.is_available() else "PyTorch has no CUDA device; install its CUDA build"


if __name__ == "__main__":
    sys.exit(main())
