"""Mutation test of the maths: every encoding and operator, one small change at a time, must make a test fail."""

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = ("posexport/encodings", "posexport/ops")
#: Machinery, not maths; its tests are elsewhere.
LEFT_OUT = {"__init__", "base", "build", "beyond", "positions", "attention", "config", "describe", "gradient"}
TESTS = (
    "test_ops",
    "test_encodings",
    "test_rope",
    "test_biases",
    "test_input_encodings",
    "test_relative_terms",
    "test_vision",
)
#: What a change may not touch: the truth itself, and what only describes.
NOT_IN = {"oracle"}
#: Lines whose changes change nothing a caller can see, each with its reason.
EQUIVALENT = {
    ("posexport/encodings/deberta.py", "distance = int(mid * (last / mid) ** (n / (mid - 1)))"): (
        "a first guess, which the integer search that follows corrects"
    ),
}
SWAPS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
NAMES = {"sin": "cos", "cos": "sin", "Min": "Max", "Max": "Min"}


@dataclass(frozen=True)
class Mutant:
    """One change: characters ``start`` to ``end`` of a line of ``path`` become ``new``."""

    path: Path
    line: int
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        """The file's text with the change."""
        lines = text.split("\n")
        raw = lines[self.line - 1].encode()
        lines[self.line - 1] = (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()
        return "\n".join(lines)

    def describe(self, text: str) -> str:
        """Where it is, and the line before and after."""
        before = text.split("\n")[self.line - 1].strip()
        after = self.apply(text).split("\n")[self.line - 1].strip()
        return f"{self.path}:{self.line}: {before}  ->  {after}"


def mutants(path: Path) -> list[Mutant]:
    """All changes of one file."""
    text = (ROOT / path).read_text()
    lines = text.split("\n")
    found = []
    for node in _inside_functions(ast.parse(text)):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            found.append(_between(path, lines, node.left, node.right, SWAPS[type(node.op)]))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            found.append(_between(path, lines, node.left, node.comparators[0], SWAPS[type(node.ops[0])]))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            new = repr(node.value + 1 if isinstance(node.value, int) else node.value * 1.5)
            found.append(Mutant(path, node.lineno, node.col_offset, node.end_col_offset or 0, new))
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            end = node.end_col_offset or 0
            found.append(Mutant(path, node.end_lineno or 0, end - len(node.attr), end, NAMES[node.attr]))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            found.append(Mutant(path, node.lineno, node.col_offset, node.col_offset + 1, "+"))
    return [m for m in found if m is not None]


def _between(path: Path, lines: list[str], left: ast.expr, right: ast.expr, new: str) -> Mutant | None:
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return None
    gap = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    symbol = gap.strip(" ()")
    if symbol not in {"+", "-", "*", "<", "<=", ">", ">="}:
        return None
    start = left.end_col_offset + gap.index(symbol)
    return Mutant(path, right.lineno, start, start + len(symbol), new)


def _inside_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes of function bodies, without oracles, checks of arguments, messages and annotations."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            if node.name in NOT_IN or any("register_fake" in ast.unparse(d) for d in node.decorator_list):
                continue
            waiting += [(child, True) for child in node.body]
        elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or (inside and _checks(node)):
            continue
        else:
            if inside:
                yield node
            waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def _checks(node: ast.AST) -> bool:
    """Whether a statement only refuses arguments."""
    if isinstance(node, ast.If):
        return any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    return isinstance(node, ast.Call) and "_at_least" in ast.unparse(node.func)


def copied(tree: Path, copy: Path) -> None:
    """What the tests need of a tree."""
    for name in ("posexport", "models", "tests", "pyproject.toml"):
        source = tree / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "golden")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, copy / name)


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether all tests pass with the change."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copied(tree, copy)
        target = copy / mutant.path
        target.write_text(mutant.apply(target.read_text()))
        tests = [f"tests/{name}.py" for name in TESTS if (copy / f"tests/{name}.py").exists()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = {"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": folder}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False, timeout=600)
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout.decode()[-2000:]}")
        return done.returncode == 0


def main() -> int:
    """Exit code 1 if a mutant survives that is not listed as equivalent."""
    parser = argparse.ArgumentParser(prog="ci/mutants", description=__doc__)
    parser.add_argument("--each", type=int, default=2, help="changes per file, drawn with a seed")
    parser.add_argument("--file", nargs="*", default=None, help="only files with these stems")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = []
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*.py")):
            if path.stem in LEFT_OUT or (args.file is not None and path.stem not in args.file):
                continue
            relative = path.relative_to(ROOT)
            text = path.read_text()
            lines = [line.strip() for line in text.split("\n")]
            every = [m for m in mutants(relative) if (str(relative), lines[m.line - 1]) not in EQUIVALENT]
            chosen += random.Random(str(relative)).sample(every, min(args.each, len(every)))
    print(f"{len(chosen)} mutants", flush=True)
    alive = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        tree = Path(folder)
        copied(ROOT, tree)  # so that work may go on meanwhile
        for mutant, lives in zip(chosen, pool.map(survives, chosen, [tree] * len(chosen)), strict=True):
            alive += lives
            text = (tree / mutant.path).read_text()
            print(f"{'SURVIVED' if lives else 'killed':8} {mutant.describe(text)}", flush=True)
    print(f"{len(chosen) - alive} killed, {alive} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
