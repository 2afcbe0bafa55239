"""The encoder inside a checkpoint of another library: a family's definition, by the ``encoder_config`` in its file.

Its tensors are called as in a checkpoint of the encoder alone, behind a prefix.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from posexport.checkpoints import assign, custom_code
from posexport.checkpoints.config import Config
from posexport.checkpoints.custom_code import IDLE
from posexport.checkpoints.differences import difference_remarks
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.mapping import Plan, origin
from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.weights import Weights
from posexport.definition.definition import Definition
from posexport.errors import PosexportError
from posexport.sources.source import Model, model_of

KEY = "encoder_config"
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_OUTPUTS = ["last_hidden_state"]


@dataclass(frozen=True)
class Names(assign.Names):
    """``stored`` has the encoder's tensors by its family's names, and all others by their own."""

    behind: str = ""

    def shown(self, name: str) -> str:
        """A name as the file has it, or would have it."""
        inside = bool(self.prefix) and name.startswith(self.prefix)
        return self.stored.get(name, f"{self.behind}{name.removeprefix(self.prefix)}" if inside else name)


@dataclass(frozen=True)
class EncoderPart:
    """The definition of an encoder, its plan, and the names of all tensors of the file.

    Args:
        config: the object in the file.
        family: of its type.
        plan: its plan; the model returns hidden states.
        behind: the prefix of its tensors.
    """

    config: Config
    family: Family
    plan: Plan
    behind: str

    @property
    def model(self) -> Definition:
        return self.plan.model

    @property
    def hidden(self) -> int:
        """The channels of its states."""
        size = self.model.outputs[0].axes[-1]
        assert isinstance(size, int)
        return size

    def filled(
        self, whole: Definition, modules: dict[str, str], weights: Weights, task: str, unused: Mapping[str, str]
    ) -> Model:
        """``whole``, a definition with this encoder as its ``encoder``, with the weights.

        Args:
            whole: on the meta device.
            modules: its modules outside the encoder, by what the file calls them.
            weights: of the file.
            task: of ``posexport list tasks``.
            unused: prefixes of further tensors that the model does not need, each with a description.

        Raises:
            PosexportError: a tensor is missing, left over, or of another shape.
        """
        origins = {f"encoder.{name}": stored for name, stored in self.plan.origins.items()}
        for name, _ in whole.named_parameters():
            if not name.startswith("encoder."):
                module, _, leaf = name.rpartition(".")
                origins[name] = origin(modules[module]).below(leaf)
        plan = replace(self.plan, model=whole, origins=origins)
        names = self._names(weights)
        family = replace(self.family, model_type=whole_type(self.config), other_heads=unused)
        remarks = assign.check(plan, weights, names, family, task=task)
        remarks += [*assign.fill(plan, weights, names), *self.config.remarks]
        remarks += difference_remarks(self.family, self.plan.model)
        return model_of(whole, task, longest=plan.longest, remarks=remarks)

    def _names(self, weights: Weights) -> Names:
        inside = {name.removeprefix(self.behind): name for name in weights.shapes if name.startswith(self.behind)}
        alone = replace(weights, shapes={name: weights.shapes[whole] for name, whole in inside.items()})
        stored = {name: inside[there] for name, there in assign.names_of(alone, self.family).stored.items()}
        others = {name: name for name in weights.shapes if not name.startswith(self.behind)}
        return Names(stored | others, f"{self.family.prefix}.", "", self.behind)


def check_task(checkpoint: Checkpoint, library: str, task: str) -> None:
    """Raise PosexportError where a user asks for another task than a library's models have."""
    if checkpoint.task not in (None, task):
        label = checkpoint.config.label
        raise PosexportError(f"{label}: {library} is converted for {task}, got --task {checkpoint.task}")


def unread(config: Config, known: Set[str]) -> list[str]:
    """A remark that names the keys of a file that nothing here depends on as far as posexport knows."""
    names = sorted(set(config.values) - known - set(IDLE))
    return [f"{config.label}: {', '.join(names)} is not read"] if names else []


def whole_type(config: Config) -> str:
    """The type of the checkpoint that an encoder's configuration is in."""
    return config.outer or config.text("model_type")


def read(config: Config, behind: str, default_type: str = "deberta-v2") -> EncoderPart:
    """The encoder that ``config`` describes.

    Args:
        config: of the encoder alone (`Config.nested`).
        behind: the prefix of its tensors.
        default_type: where it names none.

    Raises:
        PosexportError: posexport defines no encoder of its type, or custom code may compute something else.
    """
    config.values.setdefault("model_type", default_type)
    kind = config.text("model_type")
    family = FAMILIES.get(kind)
    if family is not None:
        config.spellings = family.spellings
        config.refuse_unsupported(family.allowed)
        if "features" in family.all_tasks:
            plan = family.build(config, "features")
            config.remarks += custom_code.check(config)
            inputs, outputs = ([spec.name for spec in specs] for specs in (plan.model.inputs, plan.model.outputs))
            if set(inputs) <= _INPUTS and outputs == _OUTPUTS and not plan.model.parts:
                return EncoderPart(config, family, plan, behind)
    raise PosexportError(
        f"{config.label} says model_type = {kind!r:.60}; the encoders that posexport defines are read here, such as "
        "deberta-v2, modernbert, bert and xlm-roberta; load the model with its library, and convert it as a module"
    )
