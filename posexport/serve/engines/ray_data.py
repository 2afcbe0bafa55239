"""A batch job in Ray Data: parquet or JSON Lines of texts in, parquet with their vectors out.

Ray Data sends blocks to workers, and the blocks of a dead worker to another one. Every block has one output file
(`posexport.serve.engines.blocks`), so no row is lost or duplicated if a block is computed twice.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from posexport.base.system.extras import require
from posexport.base.targets.providers import DEFAULT_PROVIDER
from posexport.errors import PosexportError
from posexport.run.batches import BATCH_TOKENS
from posexport.run.bundle.manifest import MANIFEST
from posexport.run.bundle.read import read as read_manifest
from posexport.serve.engines import blocks as files
from posexport.serve.engines.fit import check_provider, embeds_texts
from posexport.serve.engines.service import REQUEST_CHARACTERS, Service

require("posexport.serve.engines.ray_data", "ray", "pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
import ray

#: rows of an output file: half a minute of work of a small model on one core
ROWS = 1024
#: the columns that outputs add to the input's
EMBEDDING, ERROR = "embedding", "error"


class Summary(msgspec.Struct, frozen=True):
    """The results of a job.

    Attributes:
        rows: number of rows of all outputs, equal to the input's.
        failed: number of rows without a vector; ``error`` says why.
        blocks: number of output files.
        done_before: number of output files of an earlier run.
    """

    rows: int
    failed: int
    blocks: int
    done_before: int


class Worker:
    """Ray Data's actor: one session, called with one block at a time."""

    def __init__(self, bundle: str, output: str, column: str, options: Mapping[str, Any]) -> None:
        self._service = Service(bundle, **options)
        self._output = Path(output)
        self._column = column

    def __call__(self, row: dict[str, Any]) -> dict[str, str]:
        """Write a block's output, and return its error: Ray Data would retry a block that raises."""
        try:
            self._encode(msgspec.convert(row, files.Block))
        except PosexportError as err:
            return {ERROR: str(err)}
        return {ERROR: ""}

    def _encode(self, block: files.Block) -> None:
        table = files.read(block)
        if self._column not in table.column_names:
            names = ", ".join(table.column_names)
            raise PosexportError(f"{block.path} has the columns {names} and no {self._column}; name one")
        vectors, errors = encode(self._service, table.column(self._column).to_pylist())
        columns = {EMBEDDING: pa.array(vectors, pa.list_(pa.float32())), ERROR: pa.array(errors, pa.string())}
        for name, values in columns.items():
            table = table.append_column(name, values)
        files.write(block, self._output, table)


def encode(service: Service, texts: list[Any]) -> tuple[list[Any], list[str | None]]:
    """A vector or an error for each text: a text that fails does not fail the others."""
    requests, errors = {}, list[str | None]([None] * len(texts))
    for place, text in enumerate(texts):
        try:
            requests[place] = service.texts([text])
        except PosexportError as err:
            errors[place] = str(err)
    vectors: list[Any] = [None] * len(texts)
    for place, outputs in zip(requests, service.compute(list(requests.values())), strict=True):
        if isinstance(outputs, PosexportError):
            errors[place] = str(outputs)
        else:
            (vectors[place],) = next(iter(outputs.values()))
    return vectors, errors


@dataclass(frozen=True, kw_only=True)
class Job:
    """A batch job.

    Attributes:
        bundle: a text embedder's bundle. All paths are on a file system that all workers share.
        source: a .parquet or .jsonl file, or a folder of them.
        output: a folder: one parquet file for each block, with the input's columns, ``embedding`` and ``error``.
        column: the column of texts.
        workers: number of sessions in the Ray cluster.
        cpus: CPUs, and so threads, of each worker.
        rows: number of rows of a block.
        provider, provider_options, batch_tokens, request_characters: as in `posexport.serve.engines.service.Service`.
    """

    bundle: Path
    source: Path
    output: Path
    column: str = "text"
    workers: int = 2
    cpus: float = 1
    rows: int = ROWS
    provider: str = DEFAULT_PROVIDER
    provider_options: Mapping[str, Any] | None = None
    batch_tokens: int = BATCH_TOKENS
    request_characters: int = REQUEST_CHARACTERS


def run(job: Job, progress: Callable[[int, int], None] = lambda *_: None) -> Summary:
    """Encode every text of the job, or those that an interrupted one left.

    ``progress``: called with the blocks that are done and all blocks.

    Raises:
        PosexportError: an unusable bundle or input, an output folder of another job, or blocks that failed.
    """
    for name, value in (("workers", job.workers), ("rows", job.rows)):
        if value < 1:
            raise PosexportError(f"{name} must be at least 1, got {value}")
    manifest = read_manifest(job.bundle)
    check_provider(manifest, job.provider)
    if not embeds_texts(manifest):
        raise PosexportError(
            f"{job.bundle} is for {manifest.task} and makes no vectors of texts; give an embedder's bundle"
        )
    # the blocks that have no output yet
    blocks = files.plan(job.source, job.column, job.rows)
    files.begin(job.output, _record(job.bundle, blocks, job.column))
    todo = files.missing(blocks, job.output)
    done = len(blocks) - len(todo)
    progress(done, len(blocks))
    errors = []
    try:
        for number, row in enumerate(_encoded(job, todo), 1):
            progress(done + number, len(blocks))
            errors += [row[ERROR]] if row[ERROR] else []
    except ray.exceptions.RayError as err:
        raise PosexportError(f"{_cause(err)}; what is done is kept, run the same command again") from err
    if errors:
        raise PosexportError(f"{errors[0]} ({len(errors)} of {len(blocks)} blocks failed; the others are kept)")
    return _checked(blocks, job.output, done)


def _encoded(job: Job, todo: list[files.Block]) -> Iterator[dict[str, Any]]:
    """The answers of the workers, one for each session; a block is an item."""
    if not todo:
        return
    options = {
        "provider": job.provider,
        "provider_options": job.provider_options,
        "threads": max(1, int(job.cpus)),
        "batch_tokens": job.batch_tokens,
        "request_characters": job.request_characters,
    }
    dataset = ray.data.from_items([msgspec.to_builtins(block) for block in todo], override_num_blocks=len(todo))
    encoded = dataset.map(
        Worker,
        fn_constructor_args=(str(job.bundle.absolute()), str(job.output.absolute()), job.column, options),
        compute=ray.data.ActorPoolStrategy(size=min(job.workers, len(todo))),
        num_cpus=job.cpus,
        num_gpus=0 if job.provider == DEFAULT_PROVIDER else 1,
    )
    yield from encoded.iter_rows()


def _cause(err: Exception) -> str:
    """The sentence of a worker's error, without Ray's traceback."""
    sentences = re.findall(r"PosexportError: (.+)", str(err))
    return sentences[-1] if sentences else str(err).strip().splitlines()[0]


def _record(bundle: Path, blocks: list[files.Block], column: str) -> dict[str, Any]:
    """The identity of a job: its model, column, and input files by name, size and time."""
    paths = sorted({Path(block.path) for block in blocks})
    return {
        "bundle": hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest(),
        "column": column,
        "input": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths],
        "rows of a block": max(block.rows for block in blocks),
    }


def _checked(blocks: list[files.Block], output: Path, done_before: int) -> Summary:
    """The job's results, counted from its files."""
    if lacking := files.missing(blocks, output):
        raise PosexportError(f"{len(lacking)} of {len(blocks)} blocks have no output; run the same command again")
    rows = failed = 0
    for block in blocks:
        file = pq.ParquetFile(output / block.output)
        if file.metadata.num_rows != block.rows:
            raise PosexportError(
                f"{output / block.output} has {file.metadata.num_rows} rows, its block has {block.rows}; remove it and "
                "run the same command again"
            )
        rows += block.rows
        failed += block.rows - file.read(columns=[ERROR]).column(ERROR).null_count
    return Summary(rows=rows, failed=failed, blocks=len(blocks), done_before=done_before)
