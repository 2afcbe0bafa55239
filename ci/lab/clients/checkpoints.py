"""Converts the checkpoints of make_checkpoints.py, runs them in two clients, and compares with transformers' answers.

``checkpoints.py OPTIMUM_PYTHON``; run by a Python that has transformers 5, through which CLIP and wav2vec2 are
converted.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
NODE = HERE.parents[1] / ".cache" / "clients" / "node"
RESULTS = HERE.parent / "results" / "clients_checkpoints.json"
#: of the largest value: float32 sums in another order
TOLERANCE = 1e-5
NAMES = ("smollm2", "qwen3-embedding", "clip", "wav2vec2")
LAYOUTS = {"@huggingface/transformers": "transformers.js", "optimum-onnx": "optimum"}


def call(*command: str | Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {(done.stderr or done.stdout).strip()[-3000:]}")


def compared(answer: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The largest difference of real values, of the largest of their array; whether tokens are the same."""
    if "error" in answer:
        return {"agrees": False, "error": answer["error"][:400]}
    if "tokens" in wanted:
        return {"agrees": answer["tokens"] == wanted["tokens"]}
    worst = 0.0
    for name, values in wanted.items():
        got, reference = np.array(answer[name]), np.array(values)
        same = got.shape == reference.shape and np.isfinite(got).all()
        worst = max(worst, float(np.abs(got - reference).max() / np.abs(reference).max()) if same else float("inf"))
    return {"agrees": worst <= TOLERANCE, "difference": float(f"{worst:.1e}")}


def main(optimum: str) -> int:
    """Exit code 1 where a client's answers are not transformers'."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        call(optimum, HERE / "make_checkpoints.py", folder)
        verdicts: dict[str, dict[str, str]] = {}
        for layout in LAYOUTS.values():
            for name in NAMES:
                target = folder / layout / name
                options = ["--layout", layout, "-o", str(target)]
                print(f"posexport convert {name} {' '.join(options[:2])}", flush=True)
                call(sys.executable, "-m", "posexport", "convert", folder / name, *options)
                manifest = json.loads((target / "posexport.json").read_text())
                verdicts.setdefault(layout, {})[name] = "proven" if manifest["proven"] else "not proven"
        shutil.copy(HERE / "checkpoints.mjs", NODE)  # modules are looked for beside the program
        answers = {client: folder / f"{layout}.json" for client, layout in LAYOUTS.items()}
        call("node", NODE / "checkpoints.mjs", folder, answers["@huggingface/transformers"])
        call(optimum, HERE / "with_optimum.py", folder, answers["optimum-onnx"])
        wanted = json.loads((folder / "expected.json").read_text())
        results: dict[str, Any] = {}
        for client, layout in LAYOUTS.items():
            answer = json.loads(answers[client].read_text())
            found = {name: compared(answer[name], wanted[name]) | {"proof": verdicts[layout][name]} for name in NAMES}
            results[client] = {"layout": layout, "versions": answer["versions"], "checkpoints": found}
            print(f"{client}: {json.dumps(found)}", flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    RESULTS.write_text(json.dumps({"date": today, "tolerance": TOLERANCE, "clients": results}, indent=2) + "\n")
    return 0 if all(one["agrees"] for each in results.values() for one in each["checkpoints"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
