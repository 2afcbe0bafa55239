"""Fills the generated blocks of README.md and docs/*.md from the code and from ``ci/results``.

``python ci/write_docs.py`` writes; ``--check`` writes nothing and exits 1 where a page is out of step. A block stands
between ``<!-- NAME -->`` and ``<!-- end -->``; `BLOCKS` says what each name is filled with.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import docs_tables
import layers

from posexport.graph.passes.pipeline import PASSES

ROOT = Path(__file__).parent.parent


def passes() -> str:
    """Every graph pass, in the order in which they run."""
    rows = [f"| {each.phase} | `{each.name}` | {each.description} |" for each in PASSES]
    return "\n".join(["| phase | pass | what it makes |", "|---|---|---|", *rows])


BLOCKS: dict[str, Callable[[], str]] = docs_tables.TABLES | {
    "layers": layers.numbered,
    "imports": layers.mermaid,
    "passes": passes,
}
_BLOCK = re.compile(r"(<!-- (?P<name>[a-z-]+) -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A page's text with today's blocks; ValueError for a name that no block has."""

    def fresh(block: re.Match[str]) -> str:
        if block["name"] not in BLOCKS:
            raise ValueError(f"no generated block is called {block['name']}; there are {', '.join(sorted(BLOCKS))}")
        return f"{block[1]}{BLOCKS[block['name']]()}\n{block[3]}"

    return _BLOCK.sub(fresh, text)


def names(text: str) -> list[str]:
    """The names of a page's generated blocks."""
    return [block["name"] for block in _BLOCK.finditer(text)]


def main() -> int:
    """Exit 1 where ``--check`` finds a page that is out of step, or where a block has no place in any page."""
    check = "--check" in sys.argv[1:]
    stale = []
    for page in pages():
        before = page.read_text()
        after = filled(before)
        if before != after:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(after)
    if missing := set(BLOCKS) - {name for page in pages() for name in names(page.read_text())}:
        print(f"no page has a place for {', '.join(sorted(missing))}")
        return 1
    if check and stale:
        print(f"out of step: {', '.join(map(str, stale))}; run python ci/write_docs.py")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
