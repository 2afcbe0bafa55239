"""Runs a function of this file in a process whose CUDA is the dry run's stand-in: ``on_stand_in.py NAME ARGUMENT...``.

Each function prints one JSON document. The process ends without destructors, which would need CUDA.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
DRY = ROOT / "ci" / "lab" / "cuda_dry"
sys.path.insert(0, str(DRY))
import libraries  # noqa: E402
from stand_in import StandIn  # noqa: E402

sys.path.remove(str(DRY))


def environment(fail: str = "") -> dict[str, str]:
    """Of a process that finds the stand-ins; ``fail``: FUNCTION:CODE, the error that CUDA gives."""
    path = f"{ROOT}:{ROOT / 'tests'}:{DRY}"
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries.libraries()), "DRYRUN_FAIL": fail, "PYTHONPATH": path}


def asked(name: str, *arguments: object) -> Any:
    """What the function prints."""
    command = [sys.executable, __file__, name, *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


class Asked:
    """Counts what the device was asked for."""

    def __init__(self) -> None:
        self._stand_in = StandIn(libraries.libraries())
        self._stand_in.reset()

    def counts(self) -> dict[str, Any]:
        """Since the last call: kernels, graphs that were launched, captures, bytes that were copied to the host."""
        file = Path(os.environ.get("TMPDIR", "/tmp"), f"events-{os.getpid()}")
        events = self._stand_in.events(file)
        file.unlink()
        self._stand_in.reset()
        names = [event.name for event in events]
        to_host = [event.numbers[0] for event in events if event.kind == "copy" and event.name == "device-to-host"]
        return {
            "kernels": sum(event.kind in ("launch", "product") for event in events),
            "graphs": names.count("cudaGraphLaunch"),
            "captures": names.count("cudaStreamBeginCapture"),
            "to_host": sum(to_host),
        }


def captured(bundle: str) -> list[dict[str, Any]]:
    """Of each call of a session that captures two shapes: two of one, one of another, the first again, a third."""
    import posexport
    from posexport.run import captured

    captured.MOST = 2

    session = posexport.load(bundle, provider="cuda", provider_options={"graph": True})
    asked_for, counts = Asked(), []
    for length in (5, 5, 7, 5, 9):
        session.run({"input_ids": np.ones((1, length), np.int64)})
        counts.append(asked_for.counts())
    return counts


def generated(bundle: str, graph: str = "off") -> list[dict[str, Any]]:
    """Of the prompt and of each step of a decoder, of two generations if steps are captured."""
    import posexport
    from posexport.run import cache

    session = posexport.load(bundle, provider="cuda", provider_options={"graph": graph})
    read, counts = cache.Cache.read, []

    def counted(self: Any, *arguments: Any) -> Any:
        asked_for = Asked()
        logits = read(self, *arguments)
        counts.append(asked_for.counts())
        return logits

    cache.Cache.read = counted  # type: ignore[method-assign]
    for prompt in [[5, 2, 7, 1], [3, 1, 4, 1, 5]] if graph == "on" else [[5, 2, 7, 1]]:
        session.generate([prompt], max_new_tokens=4)
    return counts


def placed() -> dict[str, Any]:
    """Where outputs are of a call whose input has a default."""
    import onnx.parser

    from posexport.run.ort_values import run_placed, to_value
    from posexport.run.providers import make_session

    model = onnx.parser.parse_model(DEFAULTED)
    session = make_session(model.SerializeToString(), provider="cuda")
    values = {"x": to_value(np.ones(3, np.float32)), "k": to_value(np.ones(1, np.float32))}
    (y,) = run_placed(session, values, ["y"], "cuda")
    return {"device": y.device_name(), "shape": y.shape()}


#: ``k`` may be left out
DEFAULTED = """<ir_version: 8, opset_import: ["" : 18]>
g (float[n] x, float[1] k) => (float[n] y) <float[1] k = {2}> { y = Mul(x, k) }"""


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)
