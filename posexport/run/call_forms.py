"""Argument forms of sentence-transformers' methods: texts, pairs, progress bars, and arguments that need PyTorch."""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import InputSpec, OutputSpec
from posexport.errors import PosexportError
from posexport.run.batches import Progress
from posexport.run.bundle.manifest import Manifest
from posexport.run.chat import Chat
from posexport.run.texts import Texts


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

    @abc.abstractmethod
    def prepare(self, *, images: Any = None, audio: Any = None, **options: Any) -> dict[str, NDArray[Any]]:
        """The arrays for `run` from pictures or sounds."""

    def _giving(self, output: str) -> Callable[[Mapping[str, Any]], NDArray[Any]]:
        """A function that runs the graph and returns one output as an array."""
        return lambda feeds: self.run(feeds, outputs=[output])[output]


#: arguments for PyTorch's tensors, devices or processes, and the way to do the same here
_PYTORCH = {
    "convert_to_tensor": "the result is a NumPy array; torch.from_numpy makes a tensor of it",
    "convert_to_sparse_tensor": "the result is a NumPy array; torch.from_numpy(...).to_sparse() makes a tensor of it",
    "device": "posexport.load(bundle, provider=...) chooses it for the session",
    "pool": "open one session in each process",
    "chunk_size": "open one session in each process",
}
#: values that switch an argument off
_NOTHING = (None, False)


def refuse(method: str, options: Mapping[str, Any]) -> None:
    """Raises PosexportError for an argument that needs PyTorch or that ``method`` does not have."""
    for name, value in options.items():
        if name in _PYTORCH and any(value is nothing for nothing in _NOTHING):
            continue
        if name in _PYTORCH:
            raise PosexportError(f"{method} got {name} = {value!r:.60}, which needs PyTorch: {_PYTORCH[name]}")
        raise PosexportError(f"{method} has no argument {name!r:.60} here; leave it out")


def as_texts(inputs: Any) -> tuple[list[str], bool]:
    """A list of texts, and whether ``inputs`` is a single text: a str is, another iterable or an array is not."""
    if isinstance(inputs, str):
        return [str(inputs)], True
    if isinstance(inputs, np.ndarray):
        if inputs.ndim == 0 and isinstance(inputs.item(), str):
            return [inputs.item()], True
        if inputs.ndim != 1:
            raise PosexportError(f"an array of texts must have one axis, got {list(inputs.shape)}; flatten it")
        inputs = inputs.tolist()
    if isinstance(inputs, bytes | Mapping) or not isinstance(inputs, Iterable):
        raise PosexportError(f"got {type(inputs).__name__} where texts are needed; give a str or a list of str")
    texts = list(inputs)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise PosexportError(f"text {number} is of type {type(text).__name__}, not str: {text!r:.40}; leave it out")
    return texts, False


def as_pairs(inputs: Any) -> tuple[list[tuple[str, str]], bool]:
    """A list of pairs, and whether ``inputs`` is a single pair: its first element is a str, as in ``CrossEncoder``."""
    if isinstance(inputs, np.ndarray):
        inputs = np.atleast_1d(inputs).tolist()
    if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
        raise PosexportError(f"got {inputs!r:.60} where pairs of texts are needed; give (query, document)")
    inputs = list(inputs) if not isinstance(inputs, list | tuple) else inputs
    single = len(inputs) > 0 and isinstance(inputs[0], str)
    pairs = [inputs] if single else list(inputs)
    pairs = [pair.tolist() if isinstance(pair, np.ndarray) else pair for pair in pairs]
    for number, pair in enumerate(pairs):
        whole = isinstance(pair, tuple | list) and len(pair) == 2
        if not whole or not all(isinstance(text, str) for text in pair):
            raise PosexportError(f"pair {number} must be two texts, got {pair!r:.60}; give (query, document)")
    return [(query, document) for query, document in pairs], single


def with_bar(title: str, *, show: bool | None, progress: Progress | None) -> Progress | None:
    """``progress``, and with ``show`` also a progress bar on stderr, as one callback."""
    if not show:
        return progress
    from rich.console import Console
    from rich.progress import Progress as Bar

    bar = Bar(console=Console(stderr=True))
    task = bar.add_task(title, total=None)

    def both(done: int, total: int, what: str) -> None:
        # not before the first call: without texts there is none, and nothing would stop the bar
        bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()
        if progress is not None:
            progress(done, total, what)

    return both
