"""A model's graphs, called as one: most have one; parts run in turn, what one gives fed to the next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.runtime import denormals
from posexport.runtime.ort_values import run
from posexport.spec import BATCH, PAST, SEQUENCE, TOTAL, InputSpec, PartSpec, neutral
from posexport.targets.dtypes import BY_NAME

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Link:
    """One graph. ``input_names`` and ``output_names``: what its inputs and outputs are called in the whole.

    ``when``: as `PartSpec` says; ``inputs``: of a graph that does not always run.
    """

    session: "InferenceSession"
    input_names: Mapping[str, str]
    output_names: Mapping[str, str]
    when: str = "always"
    inputs: Sequence[InputSpec] = field(default=())

    def taken(self, known: Mapping[str, NDArray[Any]]) -> Arrays:
        """Its inputs by its own names, taken from ``known``, which has the whole's; unfed caches are empty."""
        return taken_by(self.inputs, self.input_names, known)

    def one_token(self, known: Mapping[str, NDArray[Any]]) -> Arrays:
        """The same with one token in every row, whichever there are, and nothing in a cache."""
        varying = [spec for spec in self.inputs if {SEQUENCE, TOTAL, PAST} & set(spec.axes)]
        fixed = {spec.name for spec in varying}
        arrays = {own: known[whole] for own, whole in self.input_names.items() if whole in known and own not in fixed}
        return arrays | _filled([s for s in self.inputs if s.name not in self.input_names or s in varying], arrays)


def taken_by(inputs: Sequence[InputSpec], feeds: Mapping[str, str], known: Mapping[str, NDArray[Any]]) -> Arrays:
    """The inputs of a graph by its own names, taken from ``known``, which has the whole's; unfed caches are empty."""
    arrays = {own: known[whole] for own, whole in feeds.items() if whole in known}
    return arrays | _filled([spec for spec in inputs if spec.name not in feeds], arrays)


def _filled(specs: Sequence[InputSpec], beside: Arrays) -> Arrays:
    """Tokens 0 that the mask keeps, one in a row; caches that hold nothing."""
    rows = next((array.shape[0] for array in beside.values()), 1)
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
    """Graphs in the order they run. Those whose outputs nobody asks for do not run."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = list(links)
        self._given = {whole for link in self.links for whole in link.output_names.values()}
        later = [link for link in self.links if link.when == "later"]
        #: what the parts of later calls give: in these, the ``first`` ones are not asked for it
        self._by_later = {whole for link in later for whole in link.output_names.values()}
        #: the caches that say which calls are later ones, with the axis of tokens
        self._past = [
            (link.input_names[spec.name], spec.axes.index(PAST))
            for link in later
            for spec in link.inputs
            if spec.role == "cache" and PAST in spec.axes and spec.name in link.input_names
        ]

    @property
    def types(self) -> dict[str, str]:
        """ONNX Runtime's type of every input of the whole."""
        types = {
            link.input_names[value.name]: value.type
            for link in self.links
            for value in taken(link.session)
            if value.name in link.input_names
        }
        return {name: kind for name, kind in types.items() if name not in self._given}

    @property
    def outputs(self) -> set[str]:
        return set(self._given)

    @property
    def providers(self) -> list[str]:
        """ONNX Runtime's execution providers: the same for all graphs."""
        return list(self.links[0].session.get_providers())

    def needs(self, outputs: Sequence[str]) -> set[str]:
        """The inputs that these outputs depend on."""
        return self._wanted(outputs) - self._given

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], options: "RunOptions | None" = None
    ) -> list[NDArray[Any]]:
        """The outputs in the order asked for, from inputs by name."""
        known = self._known(self.links, feeds, outputs, options, later=self._is_later(feeds))
        return [known[name] for name in outputs]

    def embedding(self, tokens: str) -> Link | None:
        """The graph between the input ``tokens`` and the last graph; None where that takes them itself."""
        if tokens in self.links[-1].input_names.values():
            return None
        return next(link for link in self.links if set(link.input_names.values()) == {tokens})

    def before_last(self, feeds: Mapping[str, NDArray[Any]], without: Link | None = None) -> Arrays:
        """What ``feeds`` and the graphs before it give the last one, by its own names; without new tokens.

        ``without``: the graph that new tokens go through.
        """
        last, left_out = self.links[-1], set() if without is None else set(without.output_names.values())
        outputs = [whole for whole in last.input_names.values() if whole not in left_out]
        known = self._known(self.links[:-1], feeds, outputs, None, later=True)
        return {name: known[whole] for name, whole in last.input_names.items() if whole in known}

    def each(self, feeds: Mapping[str, NDArray[Any]]) -> list[Arrays]:
        """What every graph takes when the whole is run on ``feeds``; those of other calls, what they would take."""
        later = self._is_later(feeds)
        known = self._known(self.links[:-1], feeds, sorted(self._given), None, later=later)
        return [link.one_token(known) if later and link.when == "first" else link.taken(known) for link in self.links]

    def _is_later(self, feeds: Mapping[str, NDArray[Any]]) -> bool:
        return any(name in feeds and feeds[name].shape[axis] for name, axis in self._past)

    def _wanted(self, outputs: Sequence[str]) -> set[str]:
        """All that is read or given on the way to ``outputs``."""
        names = set(outputs)
        for link in reversed(self.links):
            if names & set(link.output_names.values()):
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
        needed, known = self._wanted(outputs), dict(feeds)
        for link in links:
            if link.when == "later" and not later:
                continue
            alone = later and link.when == "first"
            left = needed - self._by_later if alone else needed
            names = [name for name, whole in link.output_names.items() if whole in left]
            if names:
                with denormals.as_zero():
                    arrays = link.one_token(known) if alone else link.taken(known)
                    values = run(link.session, names, arrays, options)
                known |= {link.output_names[name]: value for name, value in zip(names, values, strict=True)}
        return known


def taken(session: "InferenceSession") -> list[Any]:
    """The inputs of a session, those that may be left out among them."""
    return [*session.get_inputs(), *session.get_overridable_initializers()]


def open_chain(
    model: Path | bytes, parts: Sequence[PartSpec], make: "Callable[[Path | bytes], InferenceSession]"
) -> Chain:
    """``model`` as a whole; of ``parts``, it is the directory where their files are, each of which is opened once."""
    if parts:
        assert isinstance(model, Path)
        sessions = {file: make(model / file) for file in dict.fromkeys(part.file for part in parts)}
        return Chain([Link(sessions[p.file], p.input_names, p.output_names, p.when, p.inputs) for p in parts])
    session = make(model)
    feeds, gives = ({value.name: value.name for value in end} for end in (taken(session), session.get_outputs()))
    return Chain([Link(session, feeds, gives)])
