"""Mutation test of what computes: one small change at a time must make a test of the short run fail."""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MATHS = (
    "test_ops",
    "test_encodings",
    "test_rope",
    "test_biases",
    "test_input_encodings",
    "test_relative_terms",
    "test_vision",
    "test_projected_waves",
)
LOWERING = (
    "test_lowering",
    "test_rotation_graphs",
    "test_packed_heads",
    "test_export",
    "test_unused_slots",
    "test_convert",
)
PROOF = ("test_parity", "test_median", "test_verdict", "test_parity_invariants", "test_parity_locate", "test_branches")
QUANTIZED = ("test_stored_weights", "test_quantized_mutants", "test_projections_quantized", "test_int8_rows")
PRECISION = (
    "test_stored_weights",
    "test_blocks",
    "test_int8_rows",
    "test_projections_quantized",
    "test_half_precision",
)
SOURCES = (
    *("test_sources", "test_config", "test_decoders_llama", "test_seq2seq"),
    *("test_weight_files", "test_golden", "test_user_modules", "test_steps"),
)
MODULES = (
    *("test_recognised", "test_rotary_by_hand", "test_recognised_positions", "test_recognised_values"),
    *("test_twelve_modules", "test_plain_decoders", "test_bad_modules"),
)
RECOGNITION = (
    *("test_recognised", "test_recognised_scores", "test_recognised_positions", "test_recognised_values"),
    *("test_rotary_by_hand", "test_rotary_embedding", "test_position_bias"),
    *("test_distance_bias", "test_encoder_states"),
)
THROUGH = ("test_through", "test_through_heads", "test_three_graphs", "test_pictures", "test_states", "test_types")
MODELS = (
    *("test_model_config", "test_vision", "test_windowed", "test_audio", "test_longformer", "test_canine"),
    *("test_encoder", "test_caching", "test_encoder_decoder", "test_golden"),
)
#: what is changed -> the tests that are to notice, the likeliest first. Of each file what the short run has of it
PLACES = {
    "posexport/encodings": MATHS,
    "posexport/graph/ops": MATHS,
    "posexport/graph/lowering": LOWERING,
    "posexport/graph/passes": ("test_passes", "test_packed_heads", *MODULES, "test_unpadding", "test_position_bias"),
    "posexport/graph/passes/recognise": (*RECOGNITION, *MODULES),
    "posexport/nn": ("test_activations", "test_nn_attention", "test_attention_tiles", *MODELS),
    "posexport/models": MODELS,
    "posexport/conversion/export": (
        *("test_guard", "test_export", "test_sizes_on_host", "test_bad_modules", "test_axes"),
        *("test_longformer", "test_vision", "test_convert"),
    ),
    "posexport/modules/recognise": MODULES,
    "posexport/graph/passes/guard": ("test_guard", "test_longformer", "test_vision", "test_convert"),
    "posexport/proof/criterion.py": PROOF,
    "posexport/proof/report/record.py": PROOF,
    "posexport/proof/grid": PROOF,
    "posexport/proof/quantized": QUANTIZED,
    "posexport/proof/foreign": ("test_foreign_calls", "test_foreign"),
    "posexport/proof/locate": ("test_parity_locate",),
    "posexport/proof/agreement": ("test_agreement",),
    "posexport/proof/half_range.py": ("test_range",),
    "posexport/graph/precision": PRECISION,
    "posexport/checkpoints": SOURCES,
    "posexport/modules": SOURCES,
    "posexport/sources": SOURCES,
    "posexport/through": THROUGH,
    "posexport/run/cache.py": ("test_generate", "test_steps", "test_chain"),
    "posexport/run/generate/result.py": ("test_sampling", "test_generate"),
    "posexport/run/beams.py": ("test_generation_answers", "test_generation_options"),
    "posexport/run/logits": ("test_generation_answers", "test_sampling"),
}
#: a part of a file's path -> the tests that notice before those of its place
NEAREST = {
    "slots": "test_unused_slots",
    "static": "test_unused_slots",
    "rotation": "test_rotation_graphs",
    "waves": "test_projected_waves",
    "packed_heads": "test_packed_heads",
    "shared_bias": "test_projected_waves",
    "half": "test_half_precision",
    "rows": "test_int8_rows",
    "blocks": "test_blocks",
    "second_order": "test_gptq",
    "smoothing": "test_int8_smoothing",
    "watch": "test_range",
    "emulate": "test_emulation",
    "dry_run": "test_user_modules",
    "largest": "test_user_modules",
    "with_cache": "test_nn_attention",
    "modules/decoder": "test_plain_variants",
    "forward_decoder": "test_insert_cache",
    "cache": "test_cache_rows",
    "passes/cache": "test_insert_cache",
    "between": "test_regions",
    "lowering/states": "test_states",
    "flat_tokens": "test_unpadding",
    "token_regions": "test_regions",
    "distance_bias": "test_distance_bias",
    "position_bias": "test_position_bias",
    "rotary_by_hand": "test_rotary_by_hand",
    "rotary_embedding": "test_rotary_embedding",
    "functions": "test_lowering",
    "encoder_states": "test_encoder_states",
    "kept_keys": "test_kept_keys",
    "known_tables": "test_known_tables",
    "tied_head": "test_tied_head",
    "sizes_on_host": "test_sizes_on_host",
    "mapped": "test_large",
    "extend": "test_sources",
    "transforms": "test_transforms",
    "families": "test_config",
    "windowed": "test_windowed",
}
#: Machinery, not maths; its tests are elsewhere.
LEFT_OUT = {"__init__", "build", "beyond", "attention", "config", "describe", "gradient"}
LEFT_OUT |= {"encoding", "operator", "spec", "schedule", "graph_pass"}
LEFT_OUT_OF = {
    "posexport/graph/lowering": {"__init__", "lowering"},
    "posexport/graph/passes": {"__init__", "graph_pass"},
}
LEFT_OUT_OF["posexport/proof/foreign"] = {"__init__"}
_WHOLE = ("checkpoints", "conversion/export", "models", "modules", "nn", "sources", "through")
_WHOLE += ("modules/recognise", "graph/passes/recognise")
LEFT_OUT_OF |= {f"posexport/{folder}": {"__init__"} for folder in _WHOLE}
#: What a change may not touch: the truth itself, and what only describes.
NOT_IN = {"oracle"}
#: Lines whose changes change nothing a caller can see, each with its reason.
EQUIVALENT = {
    ("posexport/encodings/deberta.py", "distance = int(mid * (last / mid) ** (n / (mid - 1)))"): (
        "a first guess, which the integer search that follows corrects"
    ),
    (
        "posexport/proof/agreement/cosine.py",
        "yield y.reshape(len(y), -1), truth.reshape(len(truth), -1)",
    ): "NumPy takes any negative size for the one that it works out; the line's other changes are found",
    (
        "posexport/proof/half_range.py",
        "seen.overflow = max(seen.overflow or 0.0, np.inf if np.isnan(value) else value)",
    ): "any number below 65520, which every overflow exceeds",
    (
        "posexport/graph/precision/half/flow.py",
        "return node.inputs[:1] if node.op_type in MOVES or is_float_cast(node) else node.inputs",
    ): "the second input of what moves is of integers, which have no type to decide",
    (
        "posexport/graph/precision/selection.py",
        "return [projection for projection in chosen if gained[projection.weight.value] > 0]",
    ): ("what takes as many bytes either way; they are estimates"),
    (
        "posexport/models/longformer.py",
        "inner = {length for length in ours if limit is None or length < limit}",
    ): "the limit is a boundary of the encoding",
    ("posexport/graph/passes/cache/insert.py", "vocabulary = (sizes(logits) or ())[-1]"): (
        "logits of the tokens of all rows are [B * T, V], whose last axis is the second one; any other fails"
    ),
    (
        "posexport/conversion/export/trace.py",
        "least = limits.min_length if name == SEQUENCE else limits.min_sizes.get(name, 1)",
    ): ("PyTorch traces a dynamic size as 2 or more, whatever its least"),
    (
        "posexport/conversion/export/trace.py",
        "return torch.export.Dim(name, min=least if least > 1 else None, max=None)",
    ): ("PyTorch traces a dynamic size as 2 or more, whatever its least"),
    (
        "posexport/conversion/export/negotiate.py",
        'x = ir.val("x", ir.DataType.FLOAT, [1])',
    ): "of a graph that is never run",
    (
        "posexport/conversion/export/defaults.py",
        'end = node.attributes.get_int("end", 2)',
    ): "Slice ends at the last of two sizes",
    (
        "posexport/graph/passes/recognise/repeated_heads.py",
        "if picked is None or not shape or not whole or len(shape) != 4 or shape[1] == whole[1] or not node.graph:",
    ): "a shortcut: what follows compares values",
    ("posexport/proof/agreement/on_grid.py", 'proof.progress(0, 0, f"what {report.precision} costs, {point}")'): (
        "what a line of progress counts"
    ),
    (
        "posexport/proof/agreement/on_grid.py",
        "name = CACHE if spec.name.startswith(CACHE[:-1]) else spec.name",
    ): "no output but the cache's begins with the word without its dot",
}
SWAPS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
#: functions and operators of graphs
NAMES = {
    "sin": "cos",
    "cos": "sin",
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Div",
    "Div": "Mul",
    "Less": "LessOrEqual",
    "LessOrEqual": "Less",
    "Greater": "GreaterOrEqual",
    "GreaterOrEqual": "Greater",
    "And": "Or",
    "Or": "And",
    "Min": "Max",
    "Max": "Min",
}
#: what works on graphs that are traced already, so that the traces of one change serve the next
BEHIND_THE_TRACE = {"graph", "proof", "run"}
#: seconds for the tests of one change; endless ones are noticed too
LONGEST = 3600


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
            new = repr(node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 1.0)
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
            if node.name in NOT_IN:
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


def copied(tree: Path, copy: Path, tests: Path | None = None) -> None:
    """What the tests need of a tree; ``tests``: another one that the tests are taken from."""
    for path in sorted(tree.iterdir()):
        source = tests / path.name if tests is not None and path.name in ("tests", "pyproject.toml") else path
        if path.name.startswith("."):
            continue  # environments, caches, the repository
        if source.is_dir():
            heavy = ("golden",) if path.name == "tests" else ()
            ignore = shutil.ignore_patterns("__pycache__", *heavy)
            shutil.copytree(source, copy / path.name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, copy / path.name)
    golden = copy / "tests" / "golden"
    if not golden.exists():
        golden.symlink_to((tree / "tests" / "golden").resolve())


def run(tree: Path, tests: Sequence[str], mutant: Mutant | None = None, *, whole: bool = False) -> str:
    """The first test that fails with the change, empty where all pass; ``whole``: the rest of the short run too."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copied(tree, copy)
        if mutant is not None:
            target = copy / mutant.path
            target.write_text(mutant.apply(target.read_text()))
        paths = [path for name in tests for path in (copy / "tests").rglob(f"{name}.py")]
        files = [path.relative_to(copy).as_posix() for path in paths]
        if whole:
            rest = sorted(path.relative_to(copy).as_posix() for path in (copy / "tests").rglob("test_*.py"))
            files += [file for file in rest if file not in files]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--basetemp", f"{folder}/t"]
        environment = {"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": folder}
        given = {"POSEXPORT_TESTS_IN_ORDER": "1"}
        if mutant is None or mutant.path.parts[1] in BEHIND_THE_TRACE:
            given["POSEXPORT_TRACES"] = os.environ.get("POSEXPORT_TRACES", str(tree.with_name("traces")))
        try:
            done = subprocess.run(
                [*command, *files],
                cwd=copy,
                env=environment | given,
                capture_output=True,
                check=False,
                text=True,
                timeout=LONGEST * (10 if whole else 1),
            )
        except subprocess.TimeoutExpired:
            return "it does not end"
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return failed[1] if failed else "an error" * done.returncode


def drawn(place: str, each: int, stems: list[str] | None) -> Iterator[tuple[Mutant, tuple[str, ...]]]:
    """Some changes of every file of a place, with the tests that are to notice."""
    whole = ROOT / place
    left_out = LEFT_OUT_OF.get(place, LEFT_OUT)
    for path in [whole] if whole.is_file() else sorted(whole.rglob("*.py")):
        if path.stem in left_out or (stems is not None and path.stem not in stems):
            continue
        relative = path.relative_to(ROOT)
        lines = [line.strip() for line in path.read_text().split("\n")]
        every = [m for m in mutants(relative) if (str(relative), lines[m.line - 1]) not in EQUIVALENT]
        for mutant in random.Random(str(relative)).sample(every, min(each, len(every))):
            parts = (path.stem, *relative.parts, "/".join(relative.parts[1:3]))
            nearest = [test for part, test in NEAREST.items() if part in parts]
            yield mutant, tuple(dict.fromkeys([*nearest, *PLACES[place]]))


def main() -> int:
    """Exit code 1 if a mutant survives that is not listed as equivalent."""
    parser = argparse.ArgumentParser(prog="ci/lab/mutants", description=__doc__)
    parser.add_argument("--each", type=int, default=2, help="changes per file, drawn with a seed")
    parser.add_argument("--file", nargs="*", default=None, help="only files with these stems")
    parser.add_argument("--place", nargs="*", default=list(PLACES), choices=list(PLACES), help="only these folders")
    parser.add_argument("--sample", type=int, default=None, help="so many of them in all, drawn with a seed")
    parser.add_argument("--whole", action="store_true", help="after those tests all others of the short run")
    parser.add_argument("--tests", type=Path, default=None, help="take the tests from another checkout, to compare")
    parser.add_argument("--trust", action="store_true", help="do not see first that the tests pass without a change")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = [one for place in args.place for one in drawn(place, args.each, args.file)]
    if args.sample is not None:
        chosen = random.Random(0).sample(chosen, min(args.sample, len(chosen)))
    print(f"{len(chosen)} mutants", flush=True)
    alive = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        tree = Path(folder) / "tree"
        tree.mkdir()
        copied(ROOT, tree, args.tests)  # so that work may go on meanwhile
        for tests in () if args.trust else sorted({tests for _, tests in chosen}):
            if failed := run(tree, tests):
                sys.exit(f"{failed} fails without any change: mend it first")

        def attempt(one: tuple[Mutant, tuple[str, ...]]) -> str:
            return run(tree, one[1], one[0], whole=args.whole)

        for (mutant, _), killer in zip(chosen, pool.map(attempt, chosen), strict=True):
            alive += not killer
            text = (tree / mutant.path).read_text()
            print(f"{'killed' if killer else 'SURVIVED':8} {mutant.describe(text)}  [{killer}]", flush=True)
    print(f"{len(chosen) - alive} killed, {alive} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
