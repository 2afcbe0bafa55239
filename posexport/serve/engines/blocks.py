"""The blocks of a batch job: rows of its input files in a fixed order, one output file for each block.

An output file is written atomically, so a job that is started again computes only the blocks without one, and a block
that is computed twice has one file. Needs pyarrow.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from posexport.base.system.extras import require
from posexport.errors import PosexportError

require("posexport.serve.engines.blocks", "pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

#: the record of a job in its output folder, by which another job refuses the folder
JOB = "job.json"


class Block(msgspec.Struct, frozen=True):
    """Rows of one input file.

    Attributes:
        path: the input file.
        output: name of the output file.
        start: the first row within the row group (parquet), or the byte offset of the first row (JSON Lines).
        rows: the number of rows.
        group: the row group (parquet); None: JSON Lines.
    """

    path: str
    output: str
    start: int
    rows: int
    group: int | None = None


def plan(source: Path, column: str, size: int) -> list[Block]:
    """The blocks of a .parquet or .jsonl file, or of all .parquet and .jsonl files in a folder, sorted by name.

    Raises PosexportError for an unreadable file, another kind of file, no rows, or a missing column.
    """
    files = sorted(each for kind in ("*.parquet", "*.jsonl") for each in source.glob(kind)) or [source]
    if source.is_dir() and files == [source]:
        raise PosexportError(f"{source} holds no .parquet or .jsonl file; give a folder or file of texts")
    blocks = []
    for number, path in enumerate(files):
        if path.suffix not in (".parquet", ".jsonl"):
            raise PosexportError(f"{path} is neither .parquet nor .jsonl; convert it to one of them")
        try:
            places = [*(_parquet(path, column, size) if path.suffix == ".parquet" else _lines(path, size))]
        except (OSError, pa.ArrowException) as err:
            raise PosexportError(f"cannot read {path}: {err}; give a file of texts") from err
        blocks += [
            Block(
                path=str(path.absolute()),
                output=f"part-{number:05}-{index:07}.parquet",
                start=start,
                rows=rows,
                group=group,
            )
            for index, (group, start, rows) in enumerate(places)
        ]
    if not blocks:
        raise PosexportError(f"{source} has no rows; give texts")
    return blocks


def read(block: Block) -> "pa.Table":
    """The rows of a block with all columns; PosexportError for a line that is no JSON object."""
    if block.group is not None:
        return pq.ParquetFile(block.path).read_row_group(block.group).slice(block.start, block.rows)
    rows = []
    with open(block.path, "rb") as file:
        file.seek(block.start)
        for _ in range(block.rows):
            line = file.readline()
            try:
                row = json.loads(line)
            except ValueError as err:
                raise PosexportError(
                    f"{block.path} has a line that is no JSON ({line[:60]!r}): {err}; mend it"
                ) from err
            if not isinstance(row, dict):
                raise PosexportError(f"{block.path} has a line that is no JSON object ({line[:60]!r}); mend it")
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=None)


def write(block: Block, folder: Path, table: "pa.Table") -> None:
    """Write a block's output file atomically."""
    from posexport.base.system.files import written_whole

    with written_whole(folder / block.output, force=True) as file:
        pq.write_table(table, file)


def begin(folder: Path, job: dict[str, Any]) -> None:
    """Create the output folder, or check that its results are of this job; PosexportError if they are of another."""
    record = folder / JOB
    if record.is_file():
        before = json.loads(record.read_bytes())
        changed = [name for name, value in job.items() if before.get(name) != value]
        if changed:
            raise PosexportError(
                f"{folder} holds results of a job with another {' and '.join(changed)}; choose another output, or "
                "remove it to begin anew"
            )
        for temporary in folder.glob(".part-*"):  # of a worker that was killed while writing
            temporary.unlink(missing_ok=True)
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PosexportError(f"{folder} exists and holds no results of a job (no {JOB}); choose another output")
    folder.mkdir(parents=True, exist_ok=True)
    from posexport.base.system.files import write_whole

    write_whole(record, json.dumps(job, indent=2).encode() + b"\n", force=False)


def missing(blocks: Sequence[Block], folder: Path) -> list[Block]:
    """The blocks that have no output yet."""
    return [block for block in blocks if not (folder / block.output).is_file()]


def _parquet(path: Path, column: str, size: int) -> Iterator[tuple[int, int, int]]:
    """Row group, first row in it, and rows of each block."""
    file = pq.ParquetFile(path)
    if column not in file.schema_arrow.names:
        raise PosexportError(f"{path} has the columns {', '.join(file.schema_arrow.names)} and no {column}; name one")
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        for start in range(0, rows, size):
            yield group, start, min(size, rows - start)


def _lines(path: Path, size: int) -> Iterator[tuple[None, int, int]]:
    """Byte offset and number of rows of each block."""
    start, offset, rows = 0, 0, 0
    with path.open("rb") as file:
        for line in file:
            offset += len(line)
            rows += 1
            if rows == size:
                yield None, start, rows
                start, rows = offset, 0
    if rows:
        yield None, start, rows
