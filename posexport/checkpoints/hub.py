"""Hugging Face Hub ids (``org/name``, ``org/name@revision``) as sources: the local cache, else a download.

A cache hit needs neither the network nor huggingface_hub; a download needs the extra ``posexport[hub]``. Nothing that
a repository holds is executed, and its ``.py`` files are not downloaded.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from posexport.checkpoints import hub_cache
from posexport.errors import PosexportError

_MAIN = "main"
#: the Hub's rule for names: letters, digits, and single separators inside
_NAME = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?P<name>{_NAME}/{_NAME})(?:@(?P<revision>[A-Za-z0-9][\w./-]*))?", re.ASCII)
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True)
class HubId:
    """``name`` is ``org/name``; ``revision`` a branch, a tag or a commit of its repository."""

    name: str
    revision: str = _MAIN

    def __str__(self) -> str:
        return self.name if self.revision == _MAIN else f"{self.name}@{self.revision}"

    @property
    def download_line(self) -> str:
        """The command that downloads the repository to a directory."""
        revision = "" if self.revision == _MAIN else f" --revision {self.revision}"
        return f"hf download {self.name}{revision} --local-dir {self.name.rpartition('/')[2]}"


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint directory inside the Hugging Face cache, and the commit of its files.

    ``left``: files of the repository that a download just left there; empty for a cached one.
    """

    directory: Path
    commit: str
    left: frozenset[str] = frozenset()


def parse(argument: str) -> HubId | None:
    """The Hub id that ``argument`` is; None where it names a path that exists, or cannot be an id."""
    match = _ID.fullmatch(argument)
    if match is None or os.path.lexists(argument) or "--" in match["name"] or ".." in argument:
        return None
    return HubId(match["name"], match["revision"] or _MAIN)


def snapshot(hub_id: HubId, *, allow_pickle: bool = False) -> Snapshot:
    """The files of ``hub_id``: from the local cache where it has configuration and weights, else downloaded to it.

    A cached revision is used without a check: no request asks whether its branch has moved since.

    Raises:
        PosexportError: it is not in the cache and was not downloaded, with the reason and what to type.
    """
    cached = hub_cache.lookup(hub_id.name, hub_id.revision, allow_pickle=allow_pickle)
    if cached is not None:
        return Snapshot(cached, cached.name)
    absent = f"no such directory: {hub_id}; as a Hugging Face Hub id it is not (or not completely) in the cache either"
    if any(os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        raise PosexportError(f"{absent}, and HF_HUB_OFFLINE forbids a download: unset it, or {_by_hand(hub_id)}")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise PosexportError(f"{absent}: {_by_hand(hub_id)}, or pip install 'posexport[hub]' and convert again")
    from posexport.checkpoints import hub_download

    directory, left = hub_download.download(
        hub_id.name, hub_id.revision, allow_pickle=allow_pickle, by_hand=_by_hand(hub_id)
    )
    return Snapshot(directory, directory.name, frozenset(left))


def _by_hand(hub_id: HubId) -> str:
    return f"type {hub_id.download_line} and convert that directory"
