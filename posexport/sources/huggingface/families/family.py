"""What a family of checkpoints is: its names for the parts of an encoder, and what it computes differently.

Names are module paths: of the definition on the left (below `posexport.models.encoder.Encoder` or a head), of the
checkpoint on the right (below the family's prefix for the encoder). ``{i}`` is the number of a layer or group.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posexport.encodings.encoding import Encoding
from posexport.models.encoder import EncoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.plan import Constant, Plan
from posexport.sources.huggingface.sentence_transformers import Pooling

TASKS = (
    "features",
    "sentence-embedding",
    "fill-mask",
    "text-generation",
    "text2text-generation",
    "automatic-speech-recognition",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "image-classification",
    "ctc",
)
#: the end of a class name in ``architectures`` to its task, in the family of BERT
ARCHITECTURES = {
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "Model": "features",
}


@dataclass(frozen=True, kw_only=True)
class FillMaskNames:
    """``bias`` lists every name under which the decoder's bias is found; ``activation`` None is the model's own."""

    dense: str
    norm: str
    decoder: str
    bias: tuple[str, ...]
    activation: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClassifierNames:
    """``dense`` may be the pooler, given with the prefix as ``{prefix}.``; ``activation`` None is the model's own."""

    dense: str
    out: str
    activation: str | None = "tanh"


@dataclass(frozen=True)
class Fused:
    """The rows of part 0 (query), 1 (key) or 2 (value) of every head, of a matrix [heads 3 head_size, hidden]."""

    name: str
    part: int


@dataclass(frozen=True, kw_only=True)
class Family:
    """One ``model_type``.

    Attributes:
        prefix: stands before the encoder's tensors in checkpoints that have a head (``base_model_prefix``).
        encoder: names of the parts that exist once.
        layer: names of the parts of a layer or group.
        spellings: other names of the keys of config.json that say sizes, those that go first first.
        arrangement: fields of `EncoderConfig` that are the same for the whole family.
        options: fields of `EncoderConfig` that its config.json decides.
        after_padding: positions are counted from the padding id on, as RoBERTa does.
        padding_id: where config.json names none.
        other_heads: what stands before the tensors of heads, each with what it is.
        architectures: the end of a class name in ``architectures`` to its task.
        task_table: an embedding whose row 0 every token gets where config.json sets ``use_task_id``.
        encoding: the family's own, from its config.json; None where ``position_embedding_type`` names it.
        fixed_length: transformers keeps the encoding's numbers in a table of ``max_position_embeddings`` rows, so that
            an encoding which takes any length ends there all the same.
        constants: tensors that files hold although their numbers are a formula's, which they must agree with.
        fused: parameters of a layer, by name, that are rows of a larger tensor of the checkpoint.
        renamed: parameters of a layer whose tensor's name does not end like theirs.
        zeros: parameters of a layer that the checkpoint has not, and that are zero.
        shared: parts of a layer's encoding that are parts of its attention; config.json decides.
        beside: parts of the checkpoint's encoder (below its prefix) that no task uses, each with what it is.
        pooler: the linear layer below the prefix whose tanh of the first token is ``pooler_output``, where the
            checkpoint has it.
        activation: what the feed-forward computes whatever ``hidden_act`` says, as transformers does for the family.
        scaled: the relative scores are scaled like the rest. ALBERT adds them after the scaling.
    """

    model_type: str
    prefix: str
    encoder: Mapping[str, str]
    layer: Mapping[str, str]
    fill_mask: FillMaskNames
    classifier: ClassifierNames
    other_heads: Mapping[str, str]
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrangement: Mapping[str, Any] = field(default_factory=dict)
    options: Callable[[Config], dict[str, Any]] = lambda _: {}
    default_activation: str = "gelu"
    default_eps: float = 1e-12
    after_padding: bool = False
    padding_id: int = 0
    architectures: Mapping[str, str] = field(default_factory=lambda: ARCHITECTURES)
    #: how tensor names begin right below the prefix, so that a checkpoint without the prefix is recognised
    roots: tuple[str, ...] = (
        "embeddings.",
        "encoder.",
        "pooler.",
        "embeddings_project.",
        "LayerNorm.",
        "contact_head.",
    )
    #: keys of config.json that are refused in other families and mean nothing unusual here
    allowed: tuple[str, ...] = ()
    task_table: str | None = None
    encoding: Callable[[Config, EncoderConfig], Encoding] | None = None
    fixed_length: bool = False
    constants: Callable[[Config, EncoderConfig], dict[str, Constant]] = lambda _config, _settings: {}
    beside: Mapping[str, str | None] = field(default_factory=dict)
    fused: Mapping[str, Fused] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    shared: Callable[[Config], dict[str, str]] = lambda _: {}
    pooler: str | None = None
    activation: str | None = None
    scaled: bool = True


@dataclass(frozen=True, kw_only=True)
class OwnFamily:
    """One ``model_type`` that is no heir of BERT: it brings its definition and says where every weight comes from.

    Attributes:
        plan: from config.json and a task of ``architectures`` to the definition, made on the meta device.
        prefix: stands before the model's tensors in checkpoints that have a head; empty: never.
        roots: how tensor names begin right below the prefix, so that a checkpoint without the prefix is recognised.
        architectures: the end of a class name in ``architectures`` to its task; the first end that fits is taken.
        tasks: more tasks, which no class stands for.
        other_heads: what stands before the tensors of heads, each with what it is.
        beside: parts of the checkpoint's model (below its prefix) that no task uses, each with what it is, or None
            where nobody needs to hear of it.
        allowed: keys of config.json that are refused in other families and mean nothing unusual here.
        pooled: the definition for sentence embeddings; None: they are not read.
        pooler: as `Family` says.
        advice: the next step where ``architectures`` names a class that is none of these.
    """

    model_type: str
    plan: Callable[[Config, str], Plan]
    prefix: str
    roots: tuple[str, ...]
    architectures: Mapping[str, str]
    other_heads: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, str | None] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    pooled: Callable[[Config, Pooling], Plan] | None = None
    pooler: str | None = None
    advice: str | None = None


AnyFamily = Family | OwnFamily
