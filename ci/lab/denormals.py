"""Denormal numbers of attention with a bias by positions: `python ci/lab/denormals.py [ENCODING ...] [-o FILE]`.

Encoders of BERT-base's width with two layers and random weights, one thread, CPU time. Of each encoding and length: the
share of probabilities that are denormal; the time beside `nope` in plain ONNX Runtime and with denormals as zero,
``--target cpu``; and beside itself the time of a graph that cuts the scores before each Softmax, ``--inline``. All that
is compared runs in turn, call by call. Prints JSON, or writes it to FILE.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.run.wrapped_session import denormals_as_zero

ROOT = Path(__file__).parents[2]
SIZES = ("vocab=2048", "hidden=768", "layers=2", "heads=12", "feedforward=3072", "max_positions=2048")
LENGTHS, ROUNDS = (128, 512, 2048), 5
#: scores so far below the row's largest are raised to that: exp of it is small and no denormal number
CUT = 80.0
Session = onnxruntime.InferenceSession


def session(model: bytes) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return Session(model, options, providers=["CPUExecutionProvider"])


def feeds(of: Session, length: int) -> dict[str, Any]:
    ids = np.random.default_rng(length).integers(0, 2048, (1, length))
    every = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {port.name: every[port.name] for port in of.get_inputs()}


def share(model: bytes, length: int) -> float:
    """Of the first layer's probabilities, how many are denormal."""
    proto = onnx.load_from_string(model)
    softmax = next(node for node in proto.graph.node if node.op_type == "Softmax")
    proto.graph.output.append(helper.make_tensor_value_info(softmax.output[0], onnx.TensorProto.FLOAT, None))
    opened = session(proto.SerializeToString())
    (probabilities,) = opened.run([softmax.output[0]], feeds(opened, length))
    # by bits: a comparison may take them as zero
    bits = probabilities.view(np.uint32)
    denormal = ((bits & 0x7F800000) == 0) & ((bits & 0x007FFFFF) != 0)
    return round(float(denormal.mean()), 5)


def cut(model: bytes) -> bytes:
    """The graph with ``Max(scores, ReduceMax(scores) - CUT)`` before each Softmax."""
    proto = onnx.load_from_string(model)
    graph = proto.graph
    graph.initializer.append(numpy_helper.from_array(np.array(-CUT, np.float32), "minus_cut"))
    graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last_axis"))
    for number, node in enumerate([node for node in graph.node if node.op_type == "Softmax"]):
        scores, most, least, raised = node.input[0], *(f"{name}_{number}" for name in ("most", "least", "raised"))
        added = [
            helper.make_node("ReduceMax", [scores, "last_axis"], [most]),
            helper.make_node("Add", [most, "minus_cut"], [least]),
            helper.make_node("Max", [scores, least], [raised]),
        ]
        place = list(graph.node).index(node)
        for behind, new in enumerate(added):
            graph.node.insert(place + behind, new)
        node.input[0] = raised
    return proto.SerializeToString()


def in_turn(sessions: Mapping[str, Session], length: int) -> dict[str, float]:
    """CPU time of a call of each beside the first's, medians of quotients."""
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    for turn in range(ROUNDS + 1):
        for name, opened in sessions.items():
            inputs, begin = feeds(opened, length), time.process_time()
            opened.run(None, inputs)
            if turn:
                taken[name].append(time.process_time() - begin)
    first = np.array(next(iter(taken.values())))
    return {name: round(float(np.median(np.array(each) / first)), 3) for name, each in taken.items()}


def converted(encoding: str, folder: Path, **options: Any) -> bytes:
    convert(f"encoder-{encoding}", folder, ConvertOptions(settings=SIZES, verify=False, **options))
    return (folder / "model.onnx").read_bytes()


def main(encodings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "onnxruntime": onnxruntime.__version__,
    }
    with TemporaryDirectory() as folder:
        cpu = {each: session(converted(each, Path(folder, each), target="cpu")) for each in ("nope", *encodings)}
        plain = {each: converted(each, Path(folder, f"{each}-inline"), inline=True) for each in encodings}
        for length in LENGTHS:
            kept = in_turn(cpu, length)
            with denormals_as_zero():
                as_zero = in_turn(cpu, length)
            for each in encodings:
                both = {"plain": session(plain[each]), "cut": session(cut(plain[each]))}
                cost = in_turn(both, length)
                with denormals_as_zero():
                    cost_as_zero = in_turn(both, length)
                found[f"{each}, {length}"] = {
                    "denormal probabilities": share(plain[each], length),
                    "beside nope": kept[each],
                    "beside nope, denormals as zero": as_zero[each],
                    "scores cut, beside itself": cost["cut"],
                    "scores cut, beside itself, denormals as zero": cost_as_zero["cut"],
                }
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encodings", nargs="*", default=["alibi", "kerple", "sandwich"])
    parser.add_argument("-o", type=Path)
    asked = parser.parse_args()
    text = json.dumps(main(asked.encodings), indent=1) + "\n"
    if asked.o is not None:
        asked.o.write_text(text)
    else:
        print(text)
