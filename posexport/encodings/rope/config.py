"""From a Hugging Face configuration to a frequency schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posexport.encodings.rope.dynamic import Dynamic
from posexport.encodings.rope.linear import Linear
from posexport.encodings.rope.llama3 import Llama3
from posexport.encodings.rope.longrope import LongRope
from posexport.encodings.rope.plain import Plain
from posexport.encodings.rope.proportional import Proportional
from posexport.encodings.rope.release import release_of
from posexport.encodings.rope.schedule import Schedule
from posexport.encodings.rope.yarn import Yarn, attention_scale
from posexport.errors import PosexportError

#: keys of any of these tables; ``finetuned`` says how the weights were trained
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned", "original_max_position_embeddings"}
_TABLES = ("rope_parameters", "rope_scaling")
_ORIGINAL = "original_max_position_embeddings"


def from_config(
    config: Mapping[str, Any], *, head_size: int, layer_type: str | None = None, default_base: float = 10000.0
) -> Schedule:
    """The schedule that ``config`` (a whole ``config.json``) asks for.

    Its table is ``rope_parameters`` (transformers 5) or ``rope_scaling`` (before), null or missing for plain
    frequencies; the type is spelled ``rope_type`` or ``type``; ``rope_theta`` and ``partial_rotary_factor`` are in
    the table or at the top level. ``layer_type`` chooses from a table of tables, one per layer type, for example
    ``sliding_attention``. ``default_base``: the family's base where the file names none.

    transformers 4 and 5 read some keys differently (observed with 4.57.6 and 5.23.0):

    * ``rope_theta`` and ``partial_rotary_factor`` in the table: 4 reads the top level only, 5 the table first.
    * ``original_max_position_embeddings``: ``yarn`` and ``llama3`` take the table's in 4, and 5 the top level's
      first; ``longrope`` takes the top level's in both, and where there is none, 5 the table's, which 4 ignores.
      Without any it is ``max_position_embeddings``, which ``dynamic`` uses in both in any case.
    * ``factor`` of ``longrope`` (from which the attention factor follows): with an original length at the top level,
      4 takes the ratio of the two lengths even so, 5 the ratio only where the table has no factor.

    Where that makes a difference, ``rope_parameters`` is read as 5 reads it, ``rope_scaling`` as the version in
    ``transformers_version`` does, and a file without one is refused.

    Raises:
        PosexportError: an unknown type, a missing key, a key that would change the numbers and is not understood, a
            value that gives no frequencies, or a file that means one thing to transformers 4 and another to 5.
    """
    names = [name for name in _TABLES if config.get(name) not in (None, {})]
    schedules = [_schedule(config, name, head_size, layer_type, default_base) for name in names or (None,)]
    if any(schedule != schedules[0] for schedule in schedules):
        raise PosexportError(f"{' and '.join(_TABLES)} in config.json say different things: remove one of them")
    return schedules[0]


def _schedule(
    config: Mapping[str, Any], name: str | None, head_size: int, layer_type: str | None, default_base: float
) -> Schedule:
    """The one that the table of this name asks for."""
    table = {} if name is None else _table(config, name, layer_type)
    kind = table.get("rope_type", table.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PosexportError(f"unknown rope_type {kind!r}; known: {', '.join(sorted(_KINDS))}")
    kind_keys, make = _KINDS[kind]
    unknown = sorted(set(table) - _COMMON - kind_keys)
    if unknown:
        raise PosexportError(
            f"rope_type {kind!r} is given with {', '.join(unknown)}, which it does not take: the model's rotation is "
            "not known well enough to convert it"
        )
    release = 5 if name == "rope_parameters" else release_of(config)
    return make(_Scaling(kind, table, config, head_size, release, default_base))


@dataclass(frozen=True)
class _Scaling:
    """A table of ``rope_type`` ``kind``, and the ``config.json`` that it is in."""

    kind: str
    table: Mapping[str, Any]
    config: Mapping[str, Any]
    head_size: int
    #: the version of transformers that the table is written for: 4 knows no ``rope_parameters``; None: unknown
    release: int | None
    default_base: float

    def either(self, key: str, four: Any, five: Any) -> Any:
        """What ``key`` comes to as transformers 4 and as 5 reads the file, by its version."""
        if four != five and self.release is None:
            raise PosexportError(
                f"config.json does not say which {key} it means: of rope_scaling and what stands beside it, "
                f"transformers 4 reads {four!r:.40} and 5 reads {five!r:.40}; add the transformers_version that the "
                "file is written for"
            )
        return four if self.release is not None and self.release < 5 else five

    def _inside_or_beside(self, key: str, default: float) -> float:
        """A key that 5 moved into the table."""
        beside = default if self.config.get(key) is None else _number(key, self.config[key])
        return float(self.either(key, beside, _number(key, self.table.get(key, beside))))

    @property
    def base(self) -> float:
        return self._inside_or_beside("rope_theta", self.default_base)

    @property
    def fraction(self) -> float:
        """The share of a head's channels that are rotated."""
        return self._inside_or_beside("partial_rotary_factor", 1.0)

    @property
    def dim(self) -> int:
        """Rotated channels, rounded as transformers does."""
        return int(self.head_size * self.fraction)

    @property
    def common(self) -> dict[str, Any]:
        return {"dim": self.dim, "base": self.base}

    def need(self, key: str) -> Any:
        if key not in self.table:
            raise PosexportError(
                f"rope_type {self.kind!r} needs {key}: add it to {' or '.join(_TABLES)} in config.json"
            )
        return self.table[key]

    def number(self, key: str) -> float:
        return _number(key, self.need(key))

    def optional(self, key: str, default: float) -> float:
        """Missing, null and 0 mean the default, as in transformers."""
        return _number(key, self.table.get(key) or default)

    @property
    def now(self) -> int | None:
        """Length that the model is configured for."""
        return _whole("max_position_embeddings", self.config.get("max_position_embeddings"))

    @property
    def inside(self) -> int | None:
        """Original length, as the table says."""
        return _whole(_ORIGINAL, self.table.get(_ORIGINAL))

    @property
    def beside(self) -> int | None:
        return _whole(_ORIGINAL, self.config.get(_ORIGINAL))

    @property
    def original(self) -> int:
        """Original length; `_longrope` has a separate rule."""
        return self.length(self.inside or self.now, self.beside or self.inside or self.now)

    def length(self, four: int | None, five: int | None) -> int:
        """The original length as transformers 4 and as 5 finds it."""
        length = self.either(_ORIGINAL, four, five)
        if length is None:
            raise PosexportError(
                f"rope_type {self.kind!r} needs original_max_position_embeddings or max_position_embeddings: "
                "add one to config.json"
            )
        return int(length)

    @property
    def factor(self) -> float:
        """The table's factor, or the ratio of the two lengths."""
        if "factor" not in self.table and self.now is not None and (self.inside or self.beside) is not None:
            return self.now / self.original
        return self.number("factor")


def _table(config: Mapping[str, Any], name: str, layer_type: str | None) -> Mapping[str, Any]:
    table = config[name]
    if not isinstance(table, Mapping):
        raise PosexportError(f"{name} in config.json must be a table, got {table!r}")
    tables = [isinstance(value, Mapping) for value in table.values() if value is not None]
    if tables and all(tables):
        if layer_type not in table:
            raise PosexportError(
                f"{name} in config.json has a table for each of {', '.join(table)}, none for layers of type "
                f"{layer_type!r}"
            )
        table = table[layer_type] or {}
    # null means that the key is absent
    return {key: value for key, value in table.items() if value is not None}


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PosexportError(f"{key} in config.json must be a number, got {value!r}")
    return value


def _whole(key: str, value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise PosexportError(f"{key} in config.json must be a whole number from 1 on, got {value!r}")
    return value


def _numbers(key: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise PosexportError(f"{key} in config.json must be a list of numbers, got {value!r}")
    return tuple(_number(key, element) for element in value)


def _linear(scaling: _Scaling) -> Schedule:
    return Linear(**scaling.common, factor=scaling.number("factor"))


def _dynamic(scaling: _Scaling) -> Schedule:
    if scaling.now is None:
        raise PosexportError("rope_type 'dynamic' needs max_position_embeddings: add it to config.json")
    return Dynamic(**scaling.common, factor=scaling.number("factor"), max_positions=scaling.now)


def _yarn(scaling: _Scaling) -> Schedule:
    factor = scaling.factor
    attention = scaling.table.get("attention_factor")
    slopes = [scaling.optional(key, 0.0) for key in ("mscale", "mscale_all_dim")]
    if attention is None and all(slopes):
        attention = attention_scale(factor, slopes[0]) / attention_scale(factor, slopes[1])
    return Yarn(
        **scaling.common,
        factor=factor,
        max_positions=scaling.original,
        beta_fast=scaling.optional("beta_fast", 32.0),
        beta_slow=scaling.optional("beta_slow", 1.0),
        truncate=bool(scaling.table.get("truncate", True)),
        attention=attention,
    )


def _llama3(scaling: _Scaling) -> Schedule:
    return Llama3(
        **scaling.common,
        factor=scaling.number("factor"),
        low_freq_factor=scaling.number("low_freq_factor"),
        high_freq_factor=scaling.number("high_freq_factor"),
        max_positions=scaling.original,
    )


def _longrope(scaling: _Scaling) -> Schedule:
    attention = scaling.table.get("attention_factor")
    original = scaling.length(scaling.beside or scaling.now, scaling.beside or scaling.inside or scaling.now)
    if attention is not None:
        factor = 1.0  # it only serves to compute the attention factor
    elif scaling.beside is not None and scaling.now is not None:
        # as Phi-3's configurations do, which state both lengths at the top level
        ratio = scaling.now / scaling.beside
        factor = scaling.either("factor", ratio, scaling.number("factor") if "factor" in scaling.table else ratio)
    elif "factor" not in scaling.table and scaling.inside is not None and scaling.now is not None:
        factor = scaling.now / original
    else:
        factor = scaling.number("factor")
    return LongRope(
        **scaling.common,
        short_factor=_numbers("short_factor", scaling.need("short_factor")),
        long_factor=_numbers("long_factor", scaling.need("long_factor")),
        # a shorter limit than the original length extends nothing
        factor=max(1.0, factor),
        max_positions=original,
        attention=attention,
    )


def _proportional(scaling: _Scaling) -> Schedule:
    return Proportional(
        dim=scaling.head_size, base=scaling.base, fraction=scaling.fraction, factor=scaling.optional("factor", 1.0)
    )


_YARN = {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
_LONGROPE = {"factor", "attention_factor", "short_factor", "long_factor"}
#: keys of each type in addition to the common ones, and its schedule; ``su`` is what Phi-3 first called ``longrope``
_KINDS: dict[str, tuple[set[str], Callable[[_Scaling], Schedule]]] = {
    "default": (set(), lambda scaling: Plain(**scaling.common)),
    "linear": ({"factor"}, _linear),
    "dynamic": ({"factor"}, _dynamic),
    "yarn": (_YARN, _yarn),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, _llama3),
    "longrope": (_LONGROPE, _longrope),
    "su": (_LONGROPE, _longrope),
    "proportional": ({"factor"}, _proportional),
}
