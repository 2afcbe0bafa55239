"""Draws docs/pictures/proof.svg, a proof as a terminal shows it: ``python ci/pictures/proof.py BUNDLE``."""

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from posexport.proof.report.report import Report

COLUMNS = 96
TARGET = Path(__file__).parents[2] / "docs" / "pictures" / "proof.svg"


def main(bundle: Path) -> None:
    """The table, and the last lines."""
    report = Report.from_json((bundle / "parity.json").read_bytes())
    lines = report.to_text(width=COLUMNS, colour=True).rstrip().splitlines()
    console = Console(record=True, width=COLUMNS, file=sys.stderr)
    console.print(f"$ posexport convert sentence-transformers/all-MiniLM-L6-v2 -o {bundle.name}", highlight=False)
    for line in lines:
        console.print(Text.from_ansi(line))
    console.print(Text(f"{bundle.name}: {report.verdict}", style="bold green"))
    svg = console.export_svg(title="posexport")
    # no fonts from elsewhere: any monospace will do
    TARGET.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
