"""Abstract base of the session methods for texts."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from posexport.bundle.manifest import Manifest
from posexport.runtime.chat import Chat
from posexport.runtime.texts import Texts
from posexport.spec import InputSpec, OutputSpec


class OpenBundle(abc.ABC):
    """An open bundle: its manifest, its tokenizer and its graph."""

    @property
    @abc.abstractmethod
    def manifest(self) -> Manifest:
        """What the bundle is and was proven to do."""

    @property
    @abc.abstractmethod
    def inputs(self) -> list[InputSpec]:
        """The inputs, in the model's order."""

    @property
    @abc.abstractmethod
    def outputs(self) -> list[OutputSpec]:
        """The outputs, in the model's order."""

    @property
    @abc.abstractmethod
    def _texts(self) -> Texts:
        """The bundle's tokenizer; PosexportError where it has none."""

    @property
    @abc.abstractmethod
    def _chat(self) -> Chat:
        """The bundle's chat template; PosexportError where it has none."""

    @abc.abstractmethod
    def run(self, inputs: Mapping[str, Any], *, outputs: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """The outputs (all, or those named) for arrays or nested lists by input name."""

    def _giving(self, output: str) -> Callable[[Mapping[str, Any]], NDArray[Any]]:
        """A function that runs the graph and returns one output as an array."""
        return lambda feeds: self.run(feeds, outputs=[output])[output]
