"""The CUDA dry run: posexport's graphs for CUDA on ONNX Runtime's real CUDA provider, without a GPU.

Stand-ins for CUDA's libraries show one card; they write down what they are asked for and compute nothing. So placement,
fusions, copies, choice of kernels and memory are ONNX Runtime's own, and there are no values and no times. Rows that
are in the file already stay, so that an ended run goes on; --anew replaces them.
"""

import argparse
import fnmatch
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from cases import CARDS, Case, cases
from libraries import missing
from record import Call
from run import DryRunError, dry_run

from posexport.base.system.files import write_whole
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError

RESULTS = Path("ci/results/cuda-dry.json")


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One case on one card.

    Attributes:
        calls: by graph and call.
        layer_kernels: kernels that one more layer adds.
        error: why it is not converted or does not open.
    """

    case: str
    card: str
    calls: dict[str, dict[str, Call]] = {}
    layer_kernels: int | None = None
    error: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All rows; ``onnxruntime``: its version."""

    onnxruntime: str
    rows: list[Row]


def main() -> int:
    """Exit code 0: all cases have a row; 2: the machine lacks something."""
    parser = argparse.ArgumentParser(prog="ci/lab/cuda-dry", description=__doc__)
    parser.add_argument(
        "--only", nargs="*", default=["*"], metavar="PATTERN", help="cases: 'encoder-t5 fp16', '*int4*'"
    )
    parser.add_argument("--card", choices=CARDS.values(), nargs="*", default=list(CARDS.values()))
    parser.add_argument("--anew", action="store_true", help="replace rows that are there already")
    parser.add_argument("--seconds", type=float, default=460, help="begin no further case after so many; default: 460")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    if reason := missing():
        print(f"ci/lab/cuda-dry: {reason}", file=sys.stderr)
        return 2
    rows = read_rows(args.output)
    ends = time.monotonic() + args.seconds
    for case in cases():
        wanted = any(fnmatch.fnmatchcase(case.key, pattern) for pattern in args.only)
        cards = [n for n, name in CARDS.items() if name in args.card and (args.anew or (case.key, name) not in rows)]
        if not wanted or not cards:
            continue
        if time.monotonic() > ends:
            print(f"ci/lab/cuda-dry: {args.seconds:.0f} s are over; the same command goes on")
            return 0
        for row in of_case(case, cards):
            rows[row.case, row.card] = row
            print(f"{row.case:44} {row.card}  {summary(row)}", flush=True)
        write_rows(args.output, rows)
    return 0


def of_case(case: Case, cards: list[int]) -> list[Row]:
    """A row for each card."""
    with tempfile.TemporaryDirectory(prefix="posexport-") as folder:
        bundle, other = Path(folder, "bundle"), Path(folder, "other")
        layered = case.layered() if case.precision == "fp16" else None
        try:
            converted(case, bundle, 2)
            if layered:
                converted(case, other, case.other_layers)
        except PosexportError as err:
            return [Row(case=case.key, card=CARDS[card], error=str(err)) for card in cards]
        rows = []
        for card in cards:
            try:
                calls = dry_run(bundle, card, case.calls(), case.captured())
                added = None
                if layered:
                    others = dry_run(other, card, {layered: case.calls()[layered]})
                    added = sum(abs(calls[file][layered].kernels - others[file][layered].kernels) for file in others)
                rows.append(Row(case=case.key, card=CARDS[card], calls=calls, layer_kernels=added))
            except DryRunError as err:
                rows.append(Row(case=case.key, card=CARDS[card], error=str(err)))
        return rows


def converted(case: Case, bundle: Path, layers: int) -> None:
    """The default conversion for CUDA, not proven: values play no part here."""
    options = ConvertOptions(
        settings=case.settings(layers),
        target="cuda",
        precision=case.precision,
        cache=case.cache,
        lowering=case.lowering,
        unpad=case.unpad or None,
        verify=False,
    )
    convert(case.source(), bundle, options)


def read_rows(path: Path) -> dict[tuple[str, str], Row]:
    if not path.exists():
        return {}
    document = msgspec.json.decode(path.read_bytes(), type=Document)
    return {(row.case, row.card): row for row in document.rows}


def write_rows(path: Path, rows: dict[tuple[str, str], Row]) -> None:
    """One row a line, in the order of the cases, so that changes can be read."""
    import onnxruntime

    order = {case.key: number for number, case in enumerate(cases())}
    kept = sorted(rows.values(), key=lambda row: (order.get(row.case, len(order)), row.card))
    lines = ",\n".join(msgspec.json.encode(row).decode() for row in kept)
    write_whole(path, f'{{"onnxruntime": "{onnxruntime.__version__}", "rows": [\n{lines}\n]}}\n'.encode(), force=True)


def summary(row: Row) -> str:
    """A row for the terminal."""
    if row.error:
        return f"ERROR {row.error}"
    parts = []
    for calls in row.calls.values():
        for name, call in calls.items():
            kinds = "+".join(call.attention) or "no attention"
            copies = f" H{call.to_host} D{call.to_device}" if call.to_host or call.to_device else ""
            parts.append(f"{name}: {call.error or f'{kinds} {call.kernels}{copies}'}")
    layer = f"{row.layer_kernels} a layer; " if row.layer_kernels is not None else ""
    return layer + "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
