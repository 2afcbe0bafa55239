"""``torch.onnx.export`` without its chatter: progress, warnings and logs of graphs that it tries and drops.

``verbose=False`` leaves deprecation warnings of PyTorch's calls, the duplicate names of axes that inputs share, and
the log of every strategy that fails before one succeeds. Reason: posexport says in one sentence what failed. Seen in
2.13. Warning filters, loggers and standard output are the process's.
"""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME

#: the last two log errors that they raise too, of a strategy and of a call of shapes
_LOGGERS = {
    **dict.fromkeys(("torch.onnx", "torch.fx", "onnxscript", "onnx_ir"), logging.ERROR),
    **dict.fromkeys(("torch._guards", "torch._subclasses.fake_tensor"), logging.CRITICAL),
}


@contextmanager
def without_exporter_output() -> Iterator[None]:
    """Inside the block only errors are logged, and nothing is printed or warned of."""
    with ONE_AT_A_TIME:
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger, level in zip(loggers, _LOGGERS.values(), strict=True):
            logger.setLevel(level)
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
