"""What families of causal decoders share: from a checkpoint's names for the parts to a plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderConfig, DecoderModel, LanguageModel
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan, origins_of

#: the end of a class name to its task
ARCHITECTURES = {"ForCausalLM": "text-generation", "LMHeadModel": "text-generation", "Model": "features"}
#: what a file may have beside the model
OTHER_HEADS = {
    "lm_head.": "the language-model head",
    "embed_out.": "the language-model head",
    "score.": "a classification head",
    "classifier.": "a classification head",
    "qa_outputs.": "the question-answering head",
}


@dataclass(frozen=True)
class Rows:
    """Rows of a fused map: of each of ``groups`` runs the ``width`` of its ``parts`` that begin with ``part``."""

    name: str
    part: int
    parts: int
    groups: int
    width: int = 1


def fused(name: str, *, groups: int = 1, queries: int = 1) -> dict[str, str | Rows]:
    """Where queries, keys and values stand in one map: in each of ``groups`` runs so many parts of queries, then one
    of keys, one of values."""
    parts = queries + 2
    return {
        "attention.query": Rows(name, 0, parts, groups, queries),
        "attention.key": Rows(name, queries, parts, groups),
        "attention.value": Rows(name, queries + 1, parts, groups),
    }


@dataclass(frozen=True, kw_only=True)
class Names:
    """Modules of a `Decoder` and of its layers to the checkpoint's, with its prefix; ``{i}`` is a layer's number.

    ``head``: the map to the vocabulary. ``transposed``: the layers' maps are stored input by output. ``masks``: tensors
    of a layer that older files hold, which are masks or a formula's numbers.
    """

    once: Mapping[str, str]
    layer: Mapping[str, str | Rows]
    head: str = "lm_head"
    transposed: bool = False
    masks: tuple[str, ...] = ()
    #: keys of config.json that decide which tensors there are
    decides: tuple[str, ...] = ()


def plan(config: Config, task: str, settings: DecoderConfig, encoding: Callable[[], Encoding], names: Names) -> Plan:
    """The model for ``task`` on the meta device, and its weights' names. ``encoding`` makes the encoding there."""
    with torch.device("meta"):
        decoder = Decoder(settings, _made(config, encoding))
        head = LanguageModel(settings, decoder.token) if task == "text-generation" else None
        model = DecoderModel(decoder, head)
    stems = {f"decoder.{ours}": theirs for ours, theirs in names.once.items()} | {"head.out": names.head}
    special: dict[str, Origin] = {}
    for i in range(settings.layers):
        for ours, where in names.layer.items():
            module = f"decoder.layers.{i}.{ours}"
            if isinstance(where, str):
                stems[module] = where.format(i=i)
            if isinstance(where, Rows) or (names.transposed and not ours.endswith("norm")):
                special |= {f"{module}.{leaf}": _map(where, i, leaf, names) for leaf in ("weight", "bias")}
    if settings.head.tied:
        token = f"{names.once['token']}.weight"
        special["decoder.token.weight"] = Origin((token, f"{names.head}.weight"))
    unread = tuple(name.format(i=i) for i in range(settings.layers) for name in names.masks)
    return Plan(model, origins_of(model, stems, special), unread=unread, decides=names.decides)


def _made(config: Config, encoding: Callable[[], Encoding]) -> Encoding:
    try:
        return encoding()
    except PosexportError as err:
        raise PosexportError(f"{config.label}: {err}") from err


def _map(where: str | Rows, layer: int, leaf: str, names: Names) -> Origin:
    """The weight or bias of a linear map."""
    transposed = names.transposed and leaf == "weight"
    if isinstance(where, str):
        return Origin((f"{where.format(i=layer)}.{leaf}",), transposed=transposed)
    part = (where.part, where.groups)
    stored = (f"{where.name.format(i=layer)}.{leaf}",)
    return Origin(stored, part=part, parts=where.parts, width=where.width, transposed=transposed)


def family(
    model_type: str,
    make: Callable[[Config, str], Plan],
    *,
    prefix: str,
    roots: tuple[str, ...],
    beside: Mapping[str, str | None] | None = None,
) -> OwnFamily:
    """A family whose heads are those of text generation alone."""
    return OwnFamily(
        model_type=model_type,
        plan=make,
        prefix=prefix,
        roots=roots,
        architectures=ARCHITECTURES,
        other_heads=OTHER_HEADS,
        beside=beside or {},
        allowed=("is_decoder",),
    )


@dataclass(frozen=True)
class Given:
    """A config.json whose keys have several spellings, and the sizes that every decoder has."""

    config: Config
    #: the spellings of a key, those that go first first
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def key(self, name: str) -> str:
        """The spelling of ``name`` that the file has, else the first one."""
        known = self.spellings.get(name, (name,))
        return next((key for key in known if self.config.values.get(key) is not None), known[0])

    def size(self, name: str, default: int | None = None, **bounds: int) -> int:
        """`Config.size` of whichever spelling is there; null means the default."""
        key = self.key(name)
        if self.config.values.get(key) is None and default is not None:
            return default
        return self.config.size(key, **bounds)

    def heads(self, hidden: int) -> int:
        """The number of heads, which must divide the size."""
        heads = self.size("num_attention_heads")
        if hidden % heads:
            raise PosexportError(
                f"{self.config.label} says {self.key('hidden_size')} = {hidden}, {self.key('num_attention_heads')} = "
                f"{heads}; the heads must divide the size"
            )
        return heads

    def padding(self, vocab: int) -> int:
        """The id that fills padded places; 0 where the file names none."""
        return self.size("pad_token_id", 0, least=0, most=vocab - 1)

    def only(self, why: str, **supported: Any) -> None:
        """PosexportError where a key has another value than the one that is computed here."""
        for key, value in supported.items():
            got = self.config.values.get(key, value)
            if got != value or isinstance(got, bool) != isinstance(value, bool):
                needed = "null" if value is None else str(value).lower()
                raise PosexportError(f"{self.config.label} says {key} = {got!r:.60}; only {needed} is read: {why}")
