"""A model's graphs, called as one: most have one; parts run in turn, what one gives fed to the next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from posexport.spec import PartSpec

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Link:
    """One graph. ``feeds`` and ``gives``: what its inputs and outputs are called in the whole."""

    session: "InferenceSession"
    feeds: Mapping[str, str]
    gives: Mapping[str, str]

    def taken(self, known: Mapping[str, NDArray[Any]]) -> Arrays:
        """Of what is known, by the whole's names, what this graph takes, by its own."""
        return {own: known[whole] for own, whole in self.feeds.items() if whole in known}


class Chain:
    """Graphs in the order they run. Those whose outputs nobody asks for do not run."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = list(links)
        self._given = {whole for link in self.links for whole in link.gives.values()}

    @property
    def types(self) -> dict[str, str]:
        """ONNX Runtime's type of every input of the whole."""
        found = {link.feeds[value.name]: value.type for link in self.links for value in taken(link.session)}
        return {name: kind for name, kind in found.items() if name not in self._given}

    @property
    def outputs(self) -> set[str]:
        """All that it gives."""
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
        known = self._known(self.links, feeds, outputs, options)
        return [known[name] for name in outputs]

    def before_last(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """What ``feeds`` and the graphs before it give the last one, by its own names."""
        last = self.links[-1]
        return last.taken(self._known(self.links[:-1], feeds, list(last.feeds.values()), None))

    def each(self, feeds: Mapping[str, NDArray[Any]]) -> list[Arrays]:
        """What every graph takes when the whole is run on ``feeds``."""
        known = self._known(self.links[:-1], feeds, sorted(self._given), None)
        return [link.taken(known) for link in self.links]

    def _wanted(self, outputs: Sequence[str]) -> set[str]:
        """All that is read or given on the way to ``outputs``."""
        names = set(outputs)
        for link in reversed(self.links):
            if names & set(link.gives.values()):
                names |= set(link.feeds.values())
        return names

    def _known(
        self,
        links: Sequence[Link],
        feeds: Mapping[str, NDArray[Any]],
        outputs: Sequence[str],
        options: "RunOptions | None",
    ) -> Arrays:
        wanted, known = self._wanted(outputs), dict(feeds)
        for link in links:
            names = [own for own, whole in link.gives.items() if whole in wanted]
            if names:
                values = link.session.run(names, link.taken(known), options)
                known |= {link.gives[own]: value for own, value in zip(names, values, strict=True)}
        return known


def taken(session: "InferenceSession") -> list[Any]:
    """The inputs of a session, those that may be left out among them."""
    return [*session.get_inputs(), *session.get_overridable_initializers()]


def open_chain(
    model: Path | bytes, parts: Sequence[PartSpec], make: "Callable[[Path | bytes], InferenceSession]"
) -> Chain:
    """``model`` as a whole; of ``parts``, it is the directory where their files are."""
    if parts:
        assert isinstance(model, Path)
        return Chain([Link(make(model / part.file), part.feeds, part.gives) for part in parts])
    session = make(model)
    ends = taken(session), session.get_outputs()
    return Chain([Link(session, *({value.name: value.name for value in end} for end in ends))])
