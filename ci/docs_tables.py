"""The tables of README.md and docs/, made from the registries and from recorded results (``ci/results``)."""

import ast
import csv
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from posexport.catalogue.stored import catalogue
from posexport.conversion.export.messages import REFUSALS
from posexport.inspect.audit.registry import GROUPS, REPAIRS, RULES
from posexport.inspect.bench.records import Document, Figure
from posexport.inspect.explain.records import SHARES, Explanation

sys.path.append(str(Path(__file__).parent.parent))
from ci.lab.audit.table import table as audited
from ci.lab.bench_suites.markdown import tables
from ci.lab.cuda_dry.table import table as cuda_dry
from ci.lab.deployed.steps import table as steps
from ci.lab.deployed.table import table as converting
from ci.lab.packages import table as packages
from ci.lab.providers.table import table as provider
from ci.lab.scoreboard import table as scoreboard
from ci.lab.trained.table import table as real_weights
from tests.inspect.audit.corpus import CASES

RESULTS = Path(__file__).parent / "results"
#: charts, which pages of docs/ show
PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
#: the file of each suite's last full run
SUITES = {
    suite: f"{suite}.json"
    for suite in ("attention", "growth", "decode", "states", "ways", "quantized", "rivals", "lowerings")
} | {"paper": "cpu.json"}
ACTS = {
    "input": "input",
    "rotation": "rotation",
    "bias": "bias on the scores",
    "query-key": "query or key",
    "control": "nowhere",
}


def encodings() -> str:
    """Every encoding: what it does, where it acts, its models, its source."""
    lines = ["| name | what it does | acts | models | source |", "|---|---|---|---|---|"]
    for row in sorted(catalogue("encodings"), key=lambda row: row["name"]):
        what, source = (re.sub(r"``([^`]*)``", r"`\1`", row[key]).replace("|", "\\|") for key in ("what", "source"))
        acts = ", ".join(ACTS[family] for family in row["families"])
        models = ", ".join(model.removesuffix(f"-{row['name']}") for model in row["models"])
        lines.append(f"| `{row['name']}` | {what} | {acts} | {models} | {source} |")
    return "\n".join(lines)


def rules() -> str:
    """Every rule of an audit: its severity, what it finds, whether there is a repair, in groups."""
    lines = []
    for group, title in GROUPS.items():
        codes = [code for code in sorted(RULES) if code[2] == group]
        if not codes:
            continue
        lines += [f"**PX{group}: {title}**", "", "| code | name | severity | finds | repair |", "|---|---|---|---|---|"]
        for code in codes:
            rule = RULES[code]
            repair = REPAIRS[code].does if code in REPAIRS else ""
            lines.append(f"| `{code}` | {rule.name} | {rule.severity} | {rule.finds} | {repair} |")
        lines.append("")
    return "\n".join(lines).strip()


def corpus() -> str:
    """Public cases of wrong files, and the rule that finds each."""
    lines = ["| case | what users saw | cause | file | found by |", "|---|---|---|---|---|"]
    for case in CASES:
        found = f"`{case.code}` {RULES[case.code].name}" if case.code else ""
        lines.append(f"| {case.source} | {case.saw} | {case.cause} | {case.made} | {found} |")
    return "\n".join(lines)


def defined() -> list[dict[str, Any]]:
    """The families of checkpoints that posexport defines."""
    return [row for row in catalogue("families") if row["how"] == "defined"]


def through() -> str:
    """Types that are converted through transformers by their tasks, and those refused by the reason."""
    by_what: dict[tuple[str, str], list[str]] = {}
    for row in catalogue("families"):
        if row["how"] != "defined":
            what = ", ".join(row["tasks"]) or row["what"][0].lower() + row["what"][1:]
            by_what.setdefault((row["how"], what), []).append(row["name"])
    lines = ["| `model_type` | tasks, or why it is refused |", "|---|---|"]
    lines += [f"| {', '.join(sorted(names))} | {what} |" for (_, what), names in by_what.items()]
    return "\n".join([*lines, "", *further_proofs()])


def further_proofs() -> list[str]:
    """Sentences on the targets and precisions that types were proven for, beside cpu in float32."""
    options: dict[str, list[str]] = {}
    for row in map(json.loads, (RESULTS / "through.jsonl").read_text().splitlines()):
        if row["outcome"] == "proven" and (row["target"], row["precision"]) != ("cpu", "fp32"):
            precision = "" if row["precision"] == "fp32" else f" --precision {row['precision']}"
            options.setdefault(row["type"], []).append(f"`--target {row['target']}{precision}`")
    by_options: dict[str, list[str]] = {}
    for name, found in sorted(options.items()):
        by_options.setdefault(", ".join(sorted(found)), []).append(name)
    further = [f"with {which} too for {', '.join(names)}" for which, names in by_options.items()]
    return [f"Recorded are proofs with `--target cpu`; {'; '.join(further)}."]


def clients_states() -> str:
    """Types with states: the layouts by which two clients make transformers' tokens, and why not by others."""
    measured = json.loads((RESULTS / "clients_states.json").read_text())
    versions, types = measured["versions"], measured["types"]
    clients = {"transformers.js": "@huggingface/transformers", "genai": "onnxruntime-genai"}
    cells: dict[tuple[str, ...], list[str]] = {}
    for name, found in types.items():
        cells.setdefault(tuple(found[layout].partition(":")[0] for layout in clients), []).append(name)
    head = " | ".join(f"`{layout}`, {client} {versions[client]}" for layout, client in clients.items())
    lines = [f"| `model_type` | {head} |", "|---|---|---|"]
    return "\n".join(lines + [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in sorted(cells.items())])


def golden() -> str:
    """The golden checkpoints through transformers: how many give what definitions do, and why others are refused."""
    rows = [json.loads(line) for line in (RESULTS / "through_golden.jsonl").read_text().splitlines()]
    reasons: dict[str, str] = yaml.safe_load((RESULTS.parent / "through/golden.yaml").read_text())
    refused: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["outcome"] == "refused":
            refused.setdefault(next(said for said in reasons.values() if said in row["said"]), []).append(row)
    same = [row for row in rows if row["outcome"] == "same"]
    off, graph = (max(row["off"][kind] for row in same) for kind in ("definition", "graph"))
    lines = ["| golden checkpoints | `--definition transformers` |", "|---|---|"]
    lines.append(
        f"| {len(same)} of {len(rows)} | the same: within {off:.1e} of the scale in float64, "
        f"the graph within {graph:.1e} |"
    )
    for alike in refused.values():
        first, names = alike[0], [row["checkpoint"] for row in alike]
        said = first["said"].partition("; ")[0].replace(first["checkpoint"], "it").removeprefix("config.json: ")
        lines.append(f"| {', '.join(names)} | {said} |")
    return "\n".join(lines)


def families() -> str:
    """Every family of checkpoints with its tasks, those of the same tasks in one row."""
    by_tasks: dict[str, list[str]] = {}
    for row in defined():
        by_tasks.setdefault(", ".join(sorted(row["tasks"])), []).append(row["name"])
    lines = ["| `model_type` | tasks |", "|---|---|"]
    rows = sorted((", ".join(sorted(names)), tasks) for tasks, names in by_tasks.items())
    lines += [f"| {names} | {tasks} |" for names, tasks in rows]
    return "\n".join(lines)


def speed(suite: str) -> str:
    """What the last full run of a suite found; how to make it where there is none."""
    path = RESULTS / SUITES[suite]
    if not path.exists():
        return f"Not measured yet: `ci/lab/bench {suite} -o ci/results/{path.name}`."
    chart = PICTURES / f"{suite}.svg"
    shown = f"![time and memory against length](../pictures/{chart.name})\n\n" if chart.exists() else ""
    return shown + tables(msgspec.json.decode(path.read_bytes(), type=Document))


def profiles() -> str:
    """Where the time of encoders goes that miss a figure: ``posexport explain --json`` of each and of the baseline."""
    lines = [
        "| | length | ms in kernels | rest | attention | positions | kernels of the last two |",
        "|---|---|---|---|---|---|---|",
    ]
    found = [msgspec.json.decode(path.read_bytes(), type=Explanation) for path in RESULTS.glob("explain/*.json")]
    for each in sorted(found, key=lambda each: (_length(each), each.parts[0].fraction("positions"))):
        (part,) = each.parts
        spent = Counter[str]()
        for kernel in (kernel for row in part.rows if row.share != "rest" for kernel in row.kernels):
            spent[kernel.op_type] += kernel.ms  # type: ignore[assignment]
        named = ", ".join(f"{name} {ms / part.kernels_ms:.1%}" for name, ms in spent.most_common(6))
        shares = [f"{part.fraction(share):.0%}" for share in reversed(SHARES)]
        lines.append(f"| {' | '.join([each.bundle, str(_length(each)), f'{part.kernels_ms:.0f}', *shares, named])} |")
    return "\n".join(lines)


def _length(found: Explanation) -> int:
    return int(found.call.rpartition("length ")[2])


#: rows of the table of ratios: how the benchmark and how readers call an exporter
_EXPORTERS = {
    "posexport": "posexport, `--target cpu`",
    "posexport portable": "posexport, default (`--target portable`)",
    "transformers, PyTorch eager": "PyTorch eager (transformers)",
    "optimum-onnx": "optimum-onnx",
    "transformers.exporters": "transformers.exporters",
    "mobius-onnx": "mobius-onnx",
}


def speed_short() -> str:
    """BERT-base with three encodings through every exporter, 512 tokens, as ratios."""
    document = msgspec.json.decode((RESULTS / "rivals.json").read_bytes(), type=Document)
    results = [r for r in document.results if r.valid and r.point.new == 512 and r.model.startswith("bert-")]
    heads = [result.model.removeprefix("bert-") for result in results]
    lines = [f"| {' | '.join(['BERT-base, 512 tokens', *heads])} |", "|---|" + "---|" * len(heads)]
    for name, label in _EXPORTERS.items():
        cells = [_ratio(next(f for f in r.figures if f.candidate == name)) for r in results]
        lines.append(f"| {' | '.join([label, *cells])} |")
    where = document.machine
    lines.append("")
    lines.append(
        f"{where.cpu}, {document.threads} threads, float32, batch 1, ONNX Runtime "
        f"{next(v for k, v in document.versions.items() if k.startswith('onnxruntime'))}, {document.created[:10]}."
    )
    return "\n".join(lines)


def _ratio(figure: Figure) -> str:
    if figure.wrong:
        return "wrong output"
    return "not measured" if figure.to_baseline is None else f"{figure.to_baseline:.2f}"


def compared() -> str:
    """``posexport compare``: what every encoding learned, and what it costs."""
    tasks, lengths = ("copy", "order", "marker"), (64, 128, 256)
    heads = ["encoding", *(f"{task} {'/'.join(map(str, lengths))}" for task in tasks)]
    heads += ["parameters", "kB", "latency", "memory"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    with (RESULTS / "compare.csv").open(newline="") as file:
        for row in (row for row in csv.DictReader(file) if row["status"] == "measured"):
            accuracies = [" / ".join(_percent(row[f"{task}_{length}"]) for length in lengths) for task in tasks]
            size = f"{int(row['file_bytes']) / 1000:.0f}"
            costs = [
                row["parameters"],
                size,
                *(f"{float(row[key]):.2f}" for key in ("latency_to_nope", "memory_to_nope")),
            ]
            name = f"`{row['encoding']}`"
            lines.append(f"| {' | '.join([name, *accuracies, *costs])} |")
    return "\n".join(lines)


def _percent(cell: str) -> str:
    return cell if cell == "limit" else f"{float(cell):.0%}"


def costs(kind: str) -> str:
    """What every precision costs on a real model, by the last run of ``ci/lab/costs``; ``kind``: encoder or decoder."""
    path = RESULTS / "costs.json"
    document = json.loads(path.read_bytes()) if path.exists() else {"models": []}
    model = next((each for each in document["models"] if each["kind"] == kind), None)
    if model is None:
        return "Not measured yet: `ci/lab/costs`."
    first, *_ = model["rows"]
    sizes = list(first["ratio"])
    heads = ["", "file", *(f"time, {size}" for size in sizes), "memory", "cosine, least", *_AGREEMENT[kind]]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    notes: list[str] = []
    for row in model["rows"]:
        if "failed" in row:
            notes.append(f"{row['name']}: {row['failed']}")
            continue
        lines.append(f"| {' | '.join(_cost_cells(row, first, sizes, kind))} |")
    where = document["machine"]
    measured = (
        f"`ci/lab/costs` on {where['cpu']}, {where['cores']} cores, {document['threads']} threads, ONNX Runtime "
        f"{document['versions']['onnxruntime']}, target {document['target']}, {document['sentences']} sentences, "
        f"{document['created'][:10]}, commit {document['commit']}."
    )
    left_out = [f"Not measured: {note.replace('|', ' ')}." for note in notes]
    return "\n\n".join(["\n".join(lines), measured, *left_out])


#: columns of agreement beside the cosine
_AGREEMENT = {"encoder": [], "decoder": ["top-1", "perplexity"]}


def _cost_cells(row: dict[str, Any], first: dict[str, Any], sizes: Sequence[str], kind: str) -> list[str]:
    """A row of the table, relative to the first one."""
    is_first = row is first
    size = f"{row['bytes'] / 1e6:.1f} MB" if is_first else f"{row['bytes'] / first['bytes']:.0%}"
    times = ["does not run" for _ in sizes]
    if "ms" in row:
        times = [f"{row['ms'][each]:.1f} ms" if is_first else f"{row['ratio'][each]:.2f}" for each in sizes]
    peak = "" if row.get("peak") is None else f"{row['peak'] / 1e6:.0f} MB"
    agreement = row["agreement"]
    if agreement is None:
        same = "1" if is_first else ""
        return [row["name"], size, *times, peak, same, *(same for _ in _AGREEMENT[kind])]
    outputs = agreement["outputs"]
    found = outputs.get("sentence_embedding") or outputs.get("logits") or next(iter(outputs.values()))
    cosine = f"{found['cosine']:.4f}, {found['least_cosine']:.4f}"
    further = [f"{found['top_1']:.3f}", f"{agreement['perplexity_ratio']:.3f}"] if kind == "decoder" else []
    return [row["name"], size, *times, peak, cosine, *further]


def half_errors() -> str:
    """Errors of graphs in half precision relative to PyTorch's, from ``ci/results/half.json``."""
    path = RESULTS / "half.json"
    if not path.exists():
        return "Not measured yet."
    document = json.loads(path.read_bytes())
    graphs = list(_HALF_GRAPHS)
    lines = [f"| | tokens | {' | '.join(_HALF_GRAPHS[graph] for graph in graphs)} |", "|" + "---|" * (2 + len(graphs))]
    for name, by_precision in document["results"].items():
        both = [by_precision[precision]["errors"] for _, precision in graphs]
        for length in both[0]:
            shown = (
                _times(errors[length][graph] / errors[length]["PyTorch"]) if graph in errors[length] else ""
                for (graph, _), errors in zip(graphs, both, strict=True)
            )
            lines.append(f"| {name} | {length} | {' | '.join(shown)} |")
    where = document["machine"]
    measured = f"`ci/results/half.json`: {where['cpu']}, commit {document['commit']}."
    return "\n".join(lines) + f"\n\n{measured}"


def half_encodings() -> str:
    """All encodings in half precision, from ``ci/results/precision.json``, in one paragraph."""
    path = RESULTS / "precision.json"
    if not path.exists():
        return "Not measured yet."
    document = json.loads(path.read_bytes())
    verdicts = [each["verdict"] for both in document.values() for each in both.values()]
    said = []
    for precision in ("fp16", "bf16"):
        errors = [each for both in document.values() for each in both[precision]["lengths"].values()]
        half, naive = ([each[graph] / each["torch"] for each in errors] for graph in ("half", "naive"))
        said.append(
            f"{precision}: {statistics.median(half):.1f} in the median and {max(half):.1f} at most; with positions "
            f"in {precision} too up to {max(naive):.0f}"
        )
    lengths = sorted({int(length) for both in document.values() for length in both["fp16"]["lengths"]})
    return (
        f"`ci/results/precision.json`: one model for each encoding and each kind of model, {len(document)} of them, "
        f"{verdicts.count('passed')} of {len(verdicts)} proofs passed in emulation. Their largest errors in the same "
        f"units, from {lengths[0]} to {lengths[-1]} tokens, in {'; in '.join(said)}."
    )


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


#: graph and precision -> the column's heading
_HALF_GRAPHS = {
    ("posexport", "fp16"): "fp16",
    ("posexport", "bf16"): "bf16",
    ("onnxruntime.transformers.float16", "fp16"): "ONNX Runtime's converter, fp16",
    ("onnxruntime.transformers.float16, on CPU", "fp16"): "the same, run on CPU",
}


def refusals() -> str:
    """Every message of PyTorch or ONNX Runtime that is known, what the line does, and what to write instead."""
    lines = ["| what PyTorch or ONNX Runtime says | the line ... | write instead |", "|---|---|---|"]
    for refusal in REFUSALS.values():
        cells = (f"`{refusal.says}`", refusal.meaning.replace("{0}", "..."), refusal.remedy)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def followed() -> str:
    """What PyTorch did not follow once, and the tests convert today, from their modules' first lines."""
    file = ast.parse((Path(__file__).parent.parent / "tests/bad_modules/followed.py").read_text())
    said = [ast.get_docstring(module) for module in file.body if isinstance(module, ast.ClassDef)]
    return "\n".join(f"- {line}" for line in said if line)


def load() -> str:
    """The load test: each engine with our graph and with optimum's."""
    runs = json.loads((RESULTS / "load.json").read_text())["runs"]
    heads = ["engine, graph", "requests", "rows", "wrong rows", "unexpected errors", "requests a second"]
    heads += ["p50, p99 (ms)", "resident MB, by quarter"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, run in runs.items():
        verdicts = Counter(run["verdicts"])
        wrong = verdicts.pop("wrong", 0)
        other = verdicts.total() - verdicts["right"] - verdicts["refused"]
        times = f"{run['milliseconds']['p50']:.0f}, {run['milliseconds']['p99']:.0f}"
        memory = ", ".join(f"{size:.0f}" for size in run["resident_mb_by_quarter"])
        rate = run["requests"] / run["seconds"]
        counts = f"{run['requests']:,} | {run['rows']:,} | {wrong} | {other}"
        lines.append(f"| {name} | {counts} | {rate:.0f} | {times} | {memory} |")
    first = next(iter(runs.values()))
    how = f"{first['clients']} clients, one process that computes with one thread, all-MiniLM-L6-v2"
    lines += ["", f"{how}; {first['note']}."]
    return "\n".join(lines)


def answers() -> str:
    """The parts of ci/answers: how many answers are equal with each version of transformers, and why others differ."""
    files = {major: RESULTS / f"answers-{major}.json" for major in (5, 4)}
    records = {major: json.loads(file.read_text()) for major, file in files.items() if file.is_file()}
    versions = {major: f"transformers {record['versions']['transformers']}" for major, record in records.items()}
    heads = [f"{version}: equal | remark | differ" for version in versions.values()]
    lines = [f"| asked | {' | '.join(heads)} |", f"|---|{'---|' * 3 * len(records)}"]
    modules = dict.fromkeys(row["module"] for record in records.values() for row in record["rows"])
    for module in [*modules, ""]:
        cells = []
        for record in records.values():
            counted = Counter(row["verdict"] for row in record["rows"] if module in (row["module"], ""))
            cells += [str(counted[verdict] or "") for verdict in ("equal", "remark", "DIFFERS")]
        lines.append(f"| {module.replace('_', ' ') or '**all**'} | {' | '.join(cells)} |")
    dates = ", ".join(f"{versions[major]} on {record['date']}" for major, record in records.items())
    return "\n".join([*lines, "", f"Asked {dates}."])


TABLES: dict[str, Callable[[], str]] = {
    "answers": answers,
    "load": load,
    "real-weights": real_weights,
    "packages-line": packages.sentence,
    "refusals": refusals,
    "followed": followed,
    "half-errors": half_errors,
    "half-encodings": half_encodings,
    "encodings": encodings,
    "families": families,
    "rules": rules,
    "audit-corpus": corpus,
    "audit-packages": audited,
    "through": through,
    "golden": golden,
    "clients-states": clients_states,
    "compared": compared,
    "profiles": profiles,
    "speed": speed_short,
    "cuda-dry": cuda_dry,
    "converting": converting,
    "steps": steps,
    "webgpu": partial(provider, "webgpu"),
    "openvino": partial(provider, "openvino"),
    "openvino-bfloat": partial(provider, "openvino", "bf16"),
    "openvino-bfloat-long": partial(provider, "openvino", "bf16 8192"),
    "costs-encoder": partial(costs, "encoder"),
    "costs-decoder": partial(costs, "decoder"),
    "scoreboard": scoreboard.totals,
    "scoreboard-line": scoreboard.sentence,
    "scoreboard-pairs": scoreboard.by_family,
    "scoreboard-faults": scoreboard.faults,
    "scoreboard-refusals": scoreboard.refusals,
} | {suite: partial(speed, suite) for suite in SUITES}
TABLES |= {f"packages-{draw}": partial(packages.table, draw) for draw in packages.tried()}
