"""placeholder"""
from pathlib import Path

from posexport.sources.source import Source


def as_stored(source: Source, model: "Path | bytes") -> Source:
    raise NotImplementedError
