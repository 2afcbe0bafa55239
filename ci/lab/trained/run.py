"""Trained models of PyPI: each is converted in three precisions, proven, and asked what it was trained for.

ci/results/real.json has a row for each model and precision: how many answers are PyTorch's, and how many are right.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import posexport
from ci.lab.trained import modules as modules
from ci.lab.trained import reactions as reactions
from ci.lab.trained.case import CASES, Arrays, Case, Run, made
from posexport.inspect.bench.run import commit
from posexport.modules.call import named_outputs

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "ci" / "results" / "real.json"
PRECISIONS = ("fp32", "int8", "int4")


def answered(name: str) -> list[dict[str, Any]]:
    """The rows of a model: PyTorch's, the package's own files', one for each precision."""
    case = made(name)
    case.module.eval()
    by_torch = case.ask(in_torch(case))
    first = {"model": name, "package": CASES[name].package, "what": CASES[name].what, "questions": len(by_torch)}
    rows = [{"by": "PyTorch", **judged(case, by_torch, by_torch)}]
    rows += [{"by": file, **judged(case, case.ask(run), by_torch)} for file, run in case.others.items()]
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            rows.append({"by": precision, **converted(case, precision, Path(folder) / precision, by_torch)})
    return [{**first, **row, "commit": commit()} for row in rows]


def in_torch(case: Case) -> Run:
    def run(call: Arrays) -> Arrays:
        with torch.no_grad():
            outputs = case.module(**{name: torch.from_numpy(value) for name, value in call.items()})
        return {name: output.numpy() for name, output in named_outputs(outputs).items()}

    return run


def converted(case: Case, precision: str, bundle: Path, by_torch: NDArray[Any]) -> dict[str, Any]:
    """A precision's verdict, size and answers, or the sentence that refuses it."""
    try:
        conversion = posexport.convert(
            case.source or case.module,
            bundle,
            example_inputs=None if case.source else case.example,
            target="cpu",
            precision=precision,
            **case.options,
        )
    except posexport.PosexportError as err:
        return {"refused": str(err)}
    if not conversion.good:
        return {"refused": conversion.verdict}
    size = sum(path.stat().st_size for path in bundle.iterdir() if ".onnx" in path.name)
    answers = case.ask(posexport.load(bundle).run)
    return {"verdict": conversion.verdict, "bytes": size, **judged(case, answers, by_torch)}


def judged(case: Case, answers: NDArray[Any], by_torch: NDArray[Any]) -> dict[str, Any]:
    same = {"same": case.equal(answers, by_torch)}
    return same if case.truth is None else same | {"right": case.equal(answers, case.truth)}


def record(rows: list[dict[str, Any]]) -> None:
    """Put a model's rows in their place."""
    before = json.loads(RECORD.read_text()) if RECORD.exists() else []
    kept = [*(row for row in before if row["model"] != rows[0]["model"]), *rows]
    kept.sort(key=lambda row: list(CASES).index(row["model"]))
    RECORD.write_text("[\n" + ",\n".join(json.dumps(row) for row in kept) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/lab/real", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*CASES, []], help=f"of {', '.join(CASES)}")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.filterwarnings("ignore")
        np.seterr(all="ignore")
        record(answered(*options.names))
        return
    for name in options.names or CASES:
        # a process for each: what packages change in PyTorch stays there
        ended = subprocess.run([sys.executable, "-m", "ci.lab.trained.run", name, "--one"], cwd=ROOT, check=False)
        print(name, "done" if ended.returncode == 0 else f"ended with {ended.returncode}", flush=True)


if __name__ == "__main__":
    main()
