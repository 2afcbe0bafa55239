"""The graphs of a model, run in sequence: the outputs of one are inputs of the next. Most models have one graph."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import BATCH, NUM_LOGITS, PAST, SEQUENCE, TOTAL, InputSpec, PartSpec, neutral
from posexport.base.targets.dtypes import BY_NAME
from posexport.run import wrapped_session
from posexport.run.adapter_files import with_adapter_files
from posexport.run.ort_values import run
from posexport.run.static_session import with_any_sizes

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Link:
    """One graph of a model.

    Attributes:
        session: the graph's session.
        input_names: name in the graph -> name in the model.
        output_names: name in the graph -> name in the model.
        when: the calls in which it runs, as in `PartSpec`.
        inputs: specifications of its inputs, if it does not run in every call.
    """

    session: "InferenceSession"
    input_names: Mapping[str, str]
    output_names: Mapping[str, str]
    when: str = "always"
    inputs: Sequence[InputSpec] = field(default=())

    def feeds(self, known: Mapping[str, NDArray[Any]]) -> Arrays:
        """Its feeds by the graph's names, from ``known`` by the model's names; a cache that nothing feeds is empty."""
        return graph_feeds(self.inputs, self.input_names, known)

    def one_token(self, known: Mapping[str, NDArray[Any]]) -> Arrays:
        """Feeds with one arbitrary token in every row and an empty cache."""
        varying = [spec for spec in self.inputs if {SEQUENCE, TOTAL, PAST} & set(spec.axes)]
        dynamic = {spec.name for spec in varying}
        arrays = {
            name: known[whole] for name, whole in self.input_names.items() if whole in known and name not in dynamic
        }
        return arrays | _filled([s for s in self.inputs if s.name not in self.input_names or s in varying], arrays)


def graph_feeds(inputs: Sequence[InputSpec], names: Mapping[str, str], known: Mapping[str, NDArray[Any]]) -> Arrays:
    """Feeds of a graph by its names, from ``known`` by the model's names; a cache that nothing feeds is empty.

    ``names``: name in the graph -> name in the model.
    """
    arrays = {name: known[whole] for name, whole in names.items() if whole in known}
    return arrays | _filled([spec for spec in inputs if spec.name not in names], arrays)


def _filled(specs: Sequence[InputSpec], arrays: Arrays) -> Arrays:
    """One token 0 per row, not padding, and empty caches; as many rows as ``arrays`` have."""
    rows = next((array.shape[0] for array in arrays.values()), 1)
    sizes = {BATCH: rows, SEQUENCE: 1, TOTAL: 1}
    return {
        spec.name: np.full(
            [sizes.get(axis, 0) if isinstance(axis, str) else axis for axis in spec.axes],
            neutral(spec, 1),
            BY_NAME[spec.dtype].numpy,
        )
        for spec in specs
    }


class Chain:
    """Graphs in the order in which they run. A graph runs only if one of its outputs is needed."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = list(links)
        self._computed = {whole for link in self.links for whole in link.output_names.values()}
        later = [link for link in self.links if link.when == "later"]
        #: outputs that parts for later calls compute, so that the ``first`` parts do not compute them there
        self._by_later = {whole for link in later for whole in link.output_names.values()}
        #: caches with their axis of tokens: a call with past tokens is a later one
        self._past = [
            (link.input_names[spec.name], spec.axes.index(PAST))
            for link in later
            for spec in link.inputs
            if spec.role == "cache" and PAST in spec.axes and spec.name in link.input_names
        ]

    @property
    def types(self) -> dict[str, str]:
        """ONNX Runtime's type string of every input of the model."""
        types = {
            link.input_names[value.name]: value.type
            for link in self.links
            for value in all_inputs(link.session)
            if value.name in link.input_names
        }
        return {name: kind for name, kind in types.items() if name not in self._computed}

    @property
    def outputs(self) -> set[str]:
        return set(self._computed)

    @property
    def providers(self) -> list[str]:
        """ONNX Runtime's execution providers, the same for all graphs."""
        return list(self.links[0].session.get_providers())

    def needs(self, outputs: Sequence[str], known: Collection[str] = ()) -> set[str]:
        """The inputs of the model that ``outputs`` depend on, where outputs of earlier graphs are ``known``."""
        return self._reachable(outputs, known) - self._computed

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], options: "RunOptions | None" = None
    ) -> list[NDArray[Any]]:
        """The values of ``outputs``, in their order."""
        known = self._known(self.links, feeds, outputs, options, later=self._is_later(feeds))
        return [known[name] for name in outputs]

    def embedding(self, tokens: str) -> Link | None:
        """The graph between the input ``tokens`` and the last graph; None if the last graph reads ``tokens``."""
        if tokens in self.links[-1].input_names.values():
            return None
        return next(link for link in self.links if set(link.input_names.values()) == {tokens})

    def before_last(self, feeds: Mapping[str, NDArray[Any]], without: Link | None = None) -> Arrays:
        """Feeds of the last graph by its names, except the new tokens.

        ``without``: the graph that computes embeddings of the new tokens, which does not run.
        """
        last, left_out = self.links[-1], set() if without is None else set(without.output_names.values())
        outputs = [whole for whole in last.input_names.values() if whole not in left_out]
        known = self._known(self.links[:-1], feeds, outputs, None, later=True)
        return {name: known[whole] for name, whole in last.input_names.items() if whole in known}

    def feeds_per_graph(self, feeds: Mapping[str, NDArray[Any]]) -> list[Arrays]:
        """The feeds of every graph for a call with ``feeds``, also of graphs that run in other calls."""
        later = self._is_later(feeds)
        known = self._known(self.links[:-1], feeds, sorted(self._computed), None, later=later)
        return [link.one_token(known) if later and link.when == "first" else link.feeds(known) for link in self.links]

    def _is_later(self, feeds: Mapping[str, NDArray[Any]]) -> bool:
        return any(name in feeds and feeds[name].shape[axis] for name, axis in self._past)

    def _reachable(self, outputs: Sequence[str], known: Collection[str] = ()) -> set[str]:
        """Names of ``outputs`` and of all values that they are computed from, as far as ``known`` ones."""
        names = set(outputs)
        for link in reversed(self.links):
            if (names - set(known)) & set(link.output_names.values()):
                names |= set(link.input_names.values())
        return names

    def _known(
        self,
        links: Sequence[Link],
        feeds: Mapping[str, NDArray[Any]],
        outputs: Sequence[str],
        options: "RunOptions | None",
        *,
        later: bool,
    ) -> Arrays:
        needed, known = self._reachable(outputs, self._computed & feeds.keys()), dict(feeds)
        for link in links:
            if link.when == "later" and not later:
                continue
            alone = later and link.when == "first"
            left = needed - self._by_later if alone else needed
            names = [name for name, whole in link.output_names.items() if whole in left and whole not in feeds]
            if names:
                with wrapped_session.denormals_as_zero():
                    arrays = link.one_token(known) if alone else link.feeds(known)
                    values = run(link.session, names, arrays, options)
                known |= {link.output_names[name]: value for name, value in zip(names, values, strict=True)}
        return known


def all_inputs(session: "InferenceSession") -> list[Any]:
    """The inputs of a session, including optional ones."""
    return [*session.get_inputs(), *session.get_overridable_initializers()]


def open_chain(
    model: Path | bytes, parts: Sequence[PartSpec], make: "Callable[[Path | bytes], InferenceSession]"
) -> Chain:
    """Open a model; with ``parts``, ``model`` is the directory of their files. Every file is opened once."""
    if parts:
        assert isinstance(model, Path)
        sessions = {file: make(model / file) for file in dict.fromkeys(p.file for p in parts)}
        names = [p.input_names | _undeclared(sessions[p.file]) for p in parts]
        links = zip(parts, names, strict=True)
        return Chain([Link(sessions[p.file], fed, p.output_names, p.when, p.inputs) for p, fed in links])
    session = with_any_sizes(make(model))
    if isinstance(model, Path):
        session = with_adapter_files(session, model.parent)
    inputs, outputs = (
        {value.name: value.name for value in ends} for ends in (all_inputs(session), session.get_outputs())
    )
    return Chain([Link(session, inputs, outputs)])


def _undeclared(session: "InferenceSession") -> dict[str, str]:
    """The input that a graph has and its `PartSpec` does not, if there is one."""
    return {value.name: value.name for value in all_inputs(session) if value.name == NUM_LOGITS}
