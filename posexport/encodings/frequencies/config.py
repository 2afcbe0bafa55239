"""From a Hugging Face configuration to a frequency schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posexport.encodings.frequencies.base import Schedule
from posexport.encodings.frequencies.dynamic import Dynamic
from posexport.encodings.frequencies.linear import Linear
from posexport.encodings.frequencies.llama3 import Llama3
from posexport.encodings.frequencies.longrope import LongRope
from posexport.encodings.frequencies.plain import Plain
from posexport.encodings.frequencies.proportional import Proportional
from posexport.encodings.frequencies.yarn import Yarn, attention_scale
from posexport.errors import PosexportError

#: may stand in any of these tables; ``finetuned`` says how the weights were made
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned", "original_max_position_embeddings"}
_TABLES = ("rope_parameters", "rope_scaling")


def from_config(
    config: Mapping[str, Any], *, head_size: int, layer_type: str | None = None, default_base: float = 10000.0
) -> Schedule:
    """The schedule that ``config`` (a whole ``config.json``) asks for.

    Its table is ``rope_parameters`` (transformers 5) or ``rope_scaling`` (before), null or missing for plain
    frequencies; the type is spelled ``rope_type`` or ``type``; ``rope_theta`` and ``partial_rotary_factor`` stand in
    the table or beside it, the table's going first. ``layer_type`` chooses from a table with one table a layer type,
    such as ``sliding_attention``. ``default_base``: the family's base where the file names none.

    Where versions of transformers differ, what the released weights meant goes: ``dynamic`` grows from
    ``max_position_embeddings``, all others count from ``original_max_position_embeddings`` in the table or beside it.

    Raises:
        PosexportError: an unknown type, a missing key, a key that would change the numbers and is not understood, or
            a value that gives no frequencies.
    """
    table = _table(config, layer_type)
    kind = table.get("rope_type", table.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PosexportError(f"unknown rope_type {kind!r}; known: {', '.join(sorted(_KINDS))}")
    kind_keys, make = _KINDS[kind]
    strange = sorted(set(table) - _COMMON - kind_keys)
    if strange:
        raise PosexportError(
            f"rope_type {kind!r} is given with {', '.join(strange)}, which it does not take: the model's rotation is "
            "not known well enough to convert it"
        )
    fraction = table.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    fraction = 1.0 if fraction is None else _number("partial_rotary_factor", fraction)
    base = next((where["rope_theta"] for where in (table, config) if where.get("rope_theta") is not None), default_base)
    return make(_Given(kind, table, config, head_size, fraction, _number("rope_theta", base)))


@dataclass(frozen=True)
class _Given:
    kind: str
    table: Mapping[str, Any]
    config: Mapping[str, Any]
    head_size: int
    fraction: float
    base: float

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
        """The length the model is made for."""
        return _whole("max_position_embeddings", self.config.get("max_position_embeddings"))

    @property
    def stated(self) -> int | None:
        """The length it was made for at first, where the file says so."""
        key = "original_max_position_embeddings"
        beside = _whole(key, self.config.get(key))
        return _whole(key, self.table.get(key)) if beside is None else beside

    @property
    def original(self) -> int:
        found = self.now if self.stated is None else self.stated
        if found is None:
            raise PosexportError(
                f"rope_type {self.kind!r} needs original_max_position_embeddings or max_position_embeddings: "
                "add one to config.json"
            )
        return found

    @property
    def factor(self) -> float:
        """The table's factor, or the ratio of the two lengths."""
        if "factor" not in self.table and self.now is not None and self.stated is not None:
            return self.now / self.stated
        return self.number("factor")


def _table(config: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    for name in _TABLES:
        table = config.get(name)
        if table is None:
            continue
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
        # null means "not given"
        return {key: value for key, value in table.items() if value is not None}
    return {}


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
    return tuple(_number(key, one) for one in value)


def _linear(given: _Given) -> Schedule:
    return Linear(**given.common, factor=given.number("factor"))


def _dynamic(given: _Given) -> Schedule:
    if given.now is None:
        raise PosexportError("rope_type 'dynamic' needs max_position_embeddings: add it to config.json")
    return Dynamic(**given.common, factor=given.number("factor"), max_positions=given.now)


def _yarn(given: _Given) -> Schedule:
    factor = given.factor
    attention = given.table.get("attention_factor")
    slopes = [given.optional(key, 0.0) for key in ("mscale", "mscale_all_dim")]
    if attention is None and all(slopes):
        attention = attention_scale(factor, slopes[0]) / attention_scale(factor, slopes[1])
    return Yarn(
        **given.common,
        factor=factor,
        max_positions=given.original,
        beta_fast=given.optional("beta_fast", 32.0),
        beta_slow=given.optional("beta_slow", 1.0),
        truncate=bool(given.table.get("truncate", True)),
        attention=attention,
    )


def _llama3(given: _Given) -> Schedule:
    return Llama3(
        **given.common,
        factor=given.number("factor"),
        low_freq_factor=given.number("low_freq_factor"),
        high_freq_factor=given.number("high_freq_factor"),
        max_positions=given.original,
    )


def _longrope(given: _Given) -> Schedule:
    attention = given.table.get("attention_factor")
    if given.config.get("original_max_position_embeddings") is not None and given.now is not None:
        # as Phi-3's configurations do, which state both lengths beside the table
        factor = given.now / given.original
    elif attention is not None and "factor" not in given.table:
        factor = 1.0  # it only serves to compute the attention factor
    else:
        factor = given.factor
    return LongRope(
        **given.common,
        short_factor=_numbers("short_factor", given.need("short_factor")),
        long_factor=_numbers("long_factor", given.need("long_factor")),
        # a shorter limit than the original length extends nothing
        factor=max(1.0, factor),
        max_positions=given.original,
        attention=attention,
    )


def _proportional(given: _Given) -> Schedule:
    return Proportional(
        dim=given.head_size, base=given.base, fraction=given.fraction, factor=given.optional("factor", 1.0)
    )


_YARN = {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
_LONGROPE = {"factor", "attention_factor", "short_factor", "long_factor"}
#: what a type takes beside the common keys, and how it is made; ``su`` is what Phi-3 first called ``longrope``
_KINDS: dict[str, tuple[set[str], Callable[[_Given], Schedule]]] = {
    "default": (set(), lambda given: Plain(**given.common)),
    "linear": ({"factor"}, _linear),
    "dynamic": ({"factor"}, _dynamic),
    "yarn": (_YARN, _yarn),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, _llama3),
    "longrope": (_LONGROPE, _longrope),
    "su": (_LONGROPE, _longrope),
    "proportional": ({"factor"}, _proportional),
}
