"""A family of checkpoints: its names, the tasks of its classes, and the function that builds its definition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from posexport.checkpoints.config import Config
from posexport.checkpoints.mapping import Plan


@dataclass(frozen=True, kw_only=True)
class Family:
    """One ``model_type``.

    Attributes:
        build: from config.json and a task to the definition, made on the meta device, and where every weight comes
            from. PosexportError where config.json describes none.
        prefix: prefix of the model's tensors in checkpoints with a head (``base_model_prefix``); empty: none.
        roots: how tensor names begin right below the prefix, so that a checkpoint without the prefix is recognised.
        architectures: the end of a class name in ``architectures`` to its task; the first match is used.
        tasks: more tasks, without a class.
        other_heads: prefixes of the tensors of heads, each with a description.
        beside: parts of the checkpoint's model (below its prefix) that no task uses, each with a description; None:
            no remark.
        allowed: keys of config.json that are refused in other families and mean nothing unusual here.
        spellings: other names of keys of config.json, in order of precedence.
        pooler: the linear layer below the prefix that computes ``pooler_output`` (its tanh, of the first token),
            if the checkpoint has it.
        score: the linear layer without a bias that classifies a text by its last token, of a decoder.
        advice: the next step where ``architectures`` names a class that is none of these.
    """

    model_type: str
    build: Callable[[Config, str], Plan]
    prefix: str
    roots: tuple[str, ...]
    architectures: Mapping[str, str]
    tasks: tuple[str, ...] = ()
    other_heads: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, str | None] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pooler: str | None = None
    score: str | None = None
    advice: str | None = None

    @property
    def all_tasks(self) -> list[str]:
        """The tasks of its classes, and the others."""
        return list(dict.fromkeys([*self.architectures.values(), *self.tasks]))

    def task_of(self, architecture: str) -> str | None:
        """The task of a class in ``architectures``; None for other classes."""
        end = next((end for end in self.architectures if architecture.endswith(end)), None)
        # BertLMHeadModel ends as BertModel does
        return (
            None
            if end is None or (architecture.endswith("LMHeadModel") and end == "Model")
            else self.architectures[end]
        )
