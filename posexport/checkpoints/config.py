"""Reads config.json with a type, a range and a sentence for every value."""

import copy
import math
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from posexport.checkpoints.directory import Directory
from posexport.checkpoints.folder_kind import with_type
from posexport.errors import PosexportError
from posexport.nn.feed_forward import activation

#: Above any real model, and low enough that sizes multiply without overflow.
LARGEST = 1 << 24
MOST_LAYERS = 1000
#: Keys of config.json that ask for computations that no definition has.
_REFUSED = {
    "is_decoder": "decoders attend to earlier tokens only; the encoder families are read as encoders",
    "add_cross_attention": "its layers also attend to another model's states, which is computed for encoder-decoders "
    "only; give the model without cross attention, or the encoder-decoder that it is part of",
    "is_encoder_decoder": "it is an encoder-decoder; only encoders are read",
    "pruned_heads": "pruned attention heads make layers of different widths; merge them into full layers first",
    "quantization_config": "its weights are quantised; give the checkpoint that they were made from",
}


class Values(dict[str, Any]):
    """A JSON object that records the keys that were looked up in ``asked``, as do the objects inside it."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__({key: Values(value) if isinstance(value, dict) else value for key, value in content.items()})
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self.asked.add(key)
        return super().__contains__(key)


class Config:
    """The object in a config.json. ``label`` names the file in messages, ``remarks`` are sentences for the user.

    ``released``: compute what transformers' code does where it differs from the paper (`follows_code`).
    ``spellings``: the names that a key may have in the family's files, those that go first first.
    """

    def __init__(
        self,
        directory: Directory,
        name: str = "config.json",
        *,
        released: bool = False,
    ) -> None:
        self.label = f"{directory.path}/{name}"
        self.released = released
        self._directory, self._name = directory, name
        self.spellings: Mapping[str, tuple[str, ...]] = {}
        self.remarks: list[str] = []
        #: labels of the head's weight, where the file contradicts itself (`posexport.checkpoints.label_counts`)
        self.label_count: int | None = None
        content = directory.json(name)
        if not isinstance(content, dict):
            raise PosexportError(f"{self.label} holds a {type(content).__name__}; a configuration is a JSON object")
        self.values = Values(with_type(name, content))
        #: of a part of a checkpoint, the type of the whole
        self.outer = ""

    @property
    def name(self) -> str:
        """The file, below the folder of the checkpoint."""
        return self._name

    def nested(self, key: str) -> "Config":
        """The object under ``key`` as a configuration. PosexportError where there is none."""
        content = self.values.get(key)
        if not isinstance(content, Values):
            raise PosexportError(f"{self.label} says {key} = {content!r:.60}; it must be the configuration of a model")
        part = copy.copy(self)
        part.label, part.values, part.remarks = f"{self.label}, {key},", content, []
        part.outer = self.text("model_type")
        return part

    def key(self, name: str) -> str:
        """The spelling of ``name`` that the file has, else the first one."""
        known = self.spellings.get(name, (name,))
        return next((key for key in known if self.values.get(key) is not None), known[0])

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Puts the file's name before the message of a constructor."""
        try:
            yield
        except PosexportError as err:
            if self.label in str(err):
                raise
            raise PosexportError(f"{self.label}: {err}") from err

    def under(self, over: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of the file, overridden by ``over``."""
        return ChainMap(dict(over), self.values)

    def follows_code(self, *, paper: str, code: str) -> bool:
        """Whether to compute what transformers' code does where it differs from the paper; either way it is remarked.

        ``paper`` and ``code``: clauses on the default and on transformers' computation
        (docs/papers-and-code.md lists them all).
        """
        followed = f"{code}, and so does the bundle, as asked"
        self.remarks.append(
            f"{self.label}: {followed if self.released else f'{paper}; {code}; --definition released follows it'}"
        )
        return self.released

    def remark(self, sentence: str) -> None:
        """Something that a user should know about what the file says, after its name."""
        self.remarks.append(f"{self.label} {sentence}")

    def refuse_unsupported(self, allowed: Collection[str] = ()) -> None:
        """PosexportError for what no definition computes, but for the keys in ``allowed``."""
        for key, reason in _REFUSED.items():
            if self.values.get(key) and key not in allowed:
                raise PosexportError(f"{self.label} sets {key}: {reason}")

    def generation(self, key: str) -> Any:
        """The value of a key in the generation_config.json next to the file, else in the file itself."""
        name = self._name.removesuffix("config.json") + "generation_config.json"
        content = {} if self._directory.find(name) is None else self._directory.json(name)
        stated = content.get(key) if isinstance(content, dict) else None
        return self.values.get(key) if stated is None else stated

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from ``least`` to ``most``; PosexportError when it is missing without a default."""
        key = self.key(name)
        value = self.values.get(key, default)
        if value is None and key not in self.values:
            raise PosexportError(f"{self.label} has no {key}; it must say a whole number, at least {least}")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise PosexportError(
                f"{self.label} says {key} = {value!r:.60}; it must be a whole number from {least} to {most}"
            )
        return value

    def size_or(self, name: str, default: int, *, least: int = 1, most: int = LARGEST) -> int:
        """As `size`, and ``default`` also where the file says null."""
        return default if self.values.get(self.key(name)) is None else self.size(name, least=least, most=most)

    def size_or_none(self, name: str) -> int | None:
        """A whole number from 1 on; None where the file says null or nothing."""
        return None if self.values.get(self.key(name)) is None else self.size(name)

    def heads(self, hidden: int, heads_name: str = "num_attention_heads", size_name: str = "hidden_size") -> int:
        """The number of heads, which must divide the model's size ``hidden``."""
        heads = self.size(heads_name)
        if hidden % heads:
            raise PosexportError(
                f"{self.label} says {self.key(size_name)} = {hidden}, {self.key(heads_name)} = {heads}; the heads must "
                "divide the size"
            )
        return heads

    def padding_id(self, vocab: int, default: int = 0) -> int:
        """The id that fills padded slots; ``default`` where the file names none or says null."""
        return self.size_or("pad_token_id", default, least=0, most=vocab - 1)

    def only(self, why: str, **supported: Any) -> None:
        """PosexportError where a key has another value than the one that is computed here."""
        for key, value in supported.items():
            stated = self.values.get(key, value)
            if stated != value or isinstance(stated, bool) != isinstance(value, bool):
                needed = "null" if value is None else str(value).lower()
                raise PosexportError(f"{self.label} says {key} = {stated!r:.60}; only {needed} is read: {why}")

    def sizes(self, key: str, default: Collection[int] = (), *, least: int = 1, most: int = LARGEST) -> tuple[int, ...]:
        """A list of whole numbers from ``least`` to ``most``, not empty; without a default it must be there."""
        value = self.values.get(key, list(default))
        whole = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
        if not value or not whole or not all(least <= n <= most for n in value):
            got = f"says {key} = {value!r:.60}" if key in self.values else f"has no {key}"
            raise PosexportError(f"{self.label} {got}; it must be a list of whole numbers from {least} to {most}")
        return tuple(value)

    def number(self, key: str, default: float) -> float:
        """Reads a number above 0 and below 1."""
        value = self.values.get(key, default)
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not real or not 0 < value < 1:
            raise PosexportError(f"{self.label} says {key} = {value!r:.60}; it must be a number between 0 and 1")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float | None:
        """A finite number above 0, or None where the file says null or, without a default, nothing."""
        value = self.values.get(key, default)
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (real and value > 0):
            raise PosexportError(f"{self.label} says {key} = {value!r:.60}; it must be a number above 0, or null")
        return None if value is None else float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise PosexportError(f"{self.label} says {key} = {value!r:.60}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; PosexportError when it is missing without a default."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            got = f"says {key} = {value!r:.60}" if key in self.values else f"has no {key}"
            raise PosexportError(f"{self.label} {got}; it must be a string")
        return value

    def activation(self, key: str, default: str) -> str:
        """The name of a known activation function."""
        key = self.key(key)
        name = self.text(key, default)
        try:
            activation(name)
        except PosexportError as err:
            raise PosexportError(f"{self.label} says {key} = {name!r:.60}: {err}") from err
        return name

    def labels(self) -> int:
        """How many labels a head has: `label_count`, ``id2label``, else ``num_labels``, else 2."""
        if self.label_count is not None:
            return self.label_count
        named = self.values.get("id2label")
        if named is None:
            return self.size("num_labels", 2)
        if not isinstance(named, dict) or not named:
            raise PosexportError(f"{self.label} says id2label = {named!r:.60}; it must map numbers to labels")
        return len(named)

    def architecture(self) -> str | None:
        """The first of ``architectures``, or None."""
        listed = self.values.get("architectures")
        if listed is None or listed == []:
            return None
        if not isinstance(listed, list) or not isinstance(listed[0], str):
            raise PosexportError(f"{self.label} says architectures = {listed!r:.60}; it must be a list of class names")
        return listed[0]
