"""Sessions of a large model's graphs, of which one at a time is in memory.

A proof calls the encoder of an encoder-decoder a few times (`posexport.proof.subjects.runner.RememberingSession`) and
its decoder in between. To open one again takes seconds; both take all of the model's weights, packed for products.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from posexport.base.spec import PartSpec
from posexport.base.system.freed_memory import trim
from posexport.run.wrapped_session import Port, WrappedSession

#: bytes of a model's files from which on its sessions are opened on demand
LARGE = 2 << 30

Make = Callable[[Path | bytes], Any]


class OnDemand(WrappedSession):
    """A session that ``make`` opens at a call, and that is closed where another one of ``group`` is called."""

    def __init__(self, make: Callable[[], Any], group: "list[OnDemand]") -> None:
        self._make, self._group = make, group
        self._open: Any = None
        group.append(self)
        # what belongs to an open session keeps it open
        session = self._session
        self._inputs, self._optional, self._outputs = (
            [Port(port.name, port.type, port.shape) for port in ports]
            for ports in (session.get_inputs(), session.get_overridable_initializers(), session.get_outputs())
        )
        self._metadata = SimpleNamespace(custom_metadata_map=dict(session.get_modelmeta().custom_metadata_map))

    @property
    def _session(self) -> Any:
        for other in self._group:
            if other is not self:
                other.close()
        if self._open is None:
            self._open = self._make()
        return self._open

    def close(self) -> None:
        """Give its memory back until the next call."""
        self._open = None
        trim()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def get_inputs(self) -> Any:
        return self._inputs

    def get_overridable_initializers(self) -> Any:
        return self._optional

    def get_outputs(self) -> Any:
        return self._outputs

    def get_modelmeta(self) -> Any:
        return self._metadata


def one_at_a_time(
    model: Path | bytes, parts: Sequence[PartSpec], make: Make, group: list[OnDemand], *, prepacking: bool
) -> Make:
    """``make``; of a large model of several files a way to open them by which one at a time is in memory.

    ``group``: gets the sessions that are opened so. Without ``prepacking`` also that of one file: it is opened at once.
    """
    files = {part.file for part in parts}
    if isinstance(model, bytes) or (len(files) < 2 and prepacking) or _size(model, files) < LARGE:
        return make
    return lambda file: OnDemand(lambda: make(file), group)


def _size(model: Path, files: set[str]) -> int:
    """Bytes of ``files`` in a folder, or of a file, and of those of their weights, whose names begin with theirs."""
    folder, names = (model, files) if files else (model.parent, {model.name})
    return sum(path.stat().st_size for name in names for path in folder.glob(f"{name}*"))
