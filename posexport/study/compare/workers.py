"""The processes of a comparison, of one thread each, and its directory, which one run at a time writes.

::

    models/NAME.onnx     every encoding's trained model
    compare.csv, compare.json, compare.html
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from posexport.base.system.files import probe
from posexport.errors import PosexportError
from posexport.run.bundle.directory import held


def each(
    work: Callable[..., Any], calls: Mapping[str, tuple[Any, ...]], *, processes: int
) -> Iterator[tuple[str, Any]]:
    """Results of ``work(*arguments)``, or PosexportErrors, by the calls' names and in the order in which they end.

    Whatever ends the loop early ends the processes too.

    Raises:
        PosexportError: a process was killed.
    """
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare,
    )
    # processes of the caller, which are not ended below
    earlier = set(multiprocessing.active_children())
    try:
        running: dict[Future[Any], str] = {pool.submit(work, *args): name for name, args in calls.items()}
        for future in as_completed(running):
            try:
                yield running[future], future.result()
            except BrokenProcessPool as err:
                raise PosexportError(
                    f"the process that worked on {running[future]} was killed, by too little memory perhaps; give "
                    "fewer --jobs"
                ) from err
            except PosexportError as err:
                yield running[future], err
            except Exception as err:  # noqa: BLE001 (a defect in one of many: the others' hours are not lost for it)
                lines = str(err).strip().splitlines() or [""]
                yield running[future], PosexportError(f"{type(err).__name__}: {lines[0]}")
    except BaseException:
        for process in set(multiprocessing.active_children()) - earlier:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """Initialises a worker: one thread, Ctrl-C is ignored, it ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # read when PyTorch is loaded
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


TABLES = ("compare.csv", "compare.json", "compare.html")
MODELS = "models"


@contextlib.contextmanager
def opened(path: Path, *, force: bool) -> Iterator[None]:
    """The directory, made if it is missing, without what an earlier run wrote: finished tables need ``force``.

    Raises:
        PosexportError: it holds other things or a finished comparison, cannot be written, or another run is at work in
            it.
    """
    _check(path, force=force)
    try:
        (path / MODELS).mkdir(parents=True, exist_ok=True)
        probe(path)
    except OSError as err:
        raise PosexportError(f"cannot write {path}: {err.strerror}; choose another directory") from err
    with held(path) as free:
        if not free:
            raise PosexportError(f"another run is writing {path}; wait for it or choose another directory")
        for file in [*(path / MODELS).glob("*.onnx"), *(path / name for name in TABLES)]:
            file.unlink(missing_ok=True)
        yield


def _check(path: Path, *, force: bool) -> None:
    """Raises PosexportError for a directory that is neither new nor a comparison's."""
    if path.exists() and not path.is_dir():
        raise PosexportError(f"{path} is a file; the output is a directory: choose another name")
    above = next((p for p in (path, *path.parents) if p.exists()), None)
    if above is not None and not above.is_dir():
        raise PosexportError(f"cannot make {path}: {above} is not a directory; choose another output")
    if not path.exists():
        return
    strange = sorted(p.name for p in path.iterdir() if p.name not in {*TABLES, MODELS} and p.name[0] != ".")
    if strange:
        shown = f"{', '.join(strange[:3])}{' ...' if strange[3:] else ''}"
        raise PosexportError(f"{path} holds other things ({shown}); give a new directory or one that compare made")
    if not force and any((path / name).exists() for name in TABLES):
        raise PosexportError(f"{path} holds a comparison; give --force to replace it, or choose another directory")
