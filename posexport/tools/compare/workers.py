"""Work done by processes of one thread each, which end with the process that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from posexport.errors import PosexportError


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
    others = set(multiprocessing.active_children())
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
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """One thread; Ctrl-C is the parent's affair; nothing goes on without the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # read when PyTorch is loaded
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
