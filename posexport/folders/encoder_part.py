"""The encoder inside a checkpoint of gliner or gliclass: posexport's definition, built from ``encoder_config``.

Its tensors have the names of a checkpoint that holds the encoder only, with a prefix.
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
from posexport.errors import PosexportError
from posexport.models.definition import Definition
from posexport.sources.source import Model, model_of

KEY = "encoder_config"
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_OUTPUTS = ["last_hidden_state"]


@dataclass(frozen=True)
class Names(assign.Names):
    """Names in a checkpoint with an encoder inside.

    ``stored`` maps the family's names to the encoder's tensors, and the name of every other tensor to itself;
    ``encoder_prefix`` is the prefix of the encoder's tensors in the file.
    """

    encoder_prefix: str = ""

    def shown(self, name: str) -> str:
        """The name of a tensor in the file, or the name that it would have there."""
        inside = bool(self.prefix) and name.startswith(self.prefix)
        return self.stored.get(name, f"{self.encoder_prefix}{name.removeprefix(self.prefix)}" if inside else name)


@dataclass(frozen=True)
class EncoderPart:
    """The definition of an encoder, with the origin of its weights in the file.

    Args:
        config: the encoder's configuration.
        family: the family of the encoder's type.
        plan: the definition and the origins of its parameters; the model returns hidden states.
        prefix: the prefix of the encoder's tensors in the file.
    """

    config: Config
    family: Family
    plan: Plan
    prefix: str

    @property
    def model(self) -> Definition:
        return self.plan.model

    @property
    def hidden(self) -> int:
        """The number of channels of the hidden states."""
        size = self.model.outputs[0].axes[-1]
        assert isinstance(size, int)
        return size

    def filled(
        self, whole: Definition, modules: dict[str, str], weights: Weights, task: str, unused: Mapping[str, str]
    ) -> Model:
        """Load the weights of the file into ``whole``, a definition that has this encoder as ``encoder``.

        Args:
            whole: the definition, on the meta device.
            modules: module of ``whole`` outside the encoder -> its name in the file.
            weights: the weights of the file.
            task: a name of ``posexport list tasks``.
            unused: prefix of further tensors that the model does not need -> a description.

        Raises:
            PosexportError: a tensor is missing, left over, or has another shape.
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
        inside = {name.removeprefix(self.prefix): name for name in weights.shapes if name.startswith(self.prefix)}
        alone = replace(weights, shapes={name: weights.shapes[whole] for name, whole in inside.items()})
        stored = {name: inside[there] for name, there in assign.names_of(alone, self.family).stored.items()}
        outside = {name: name for name in weights.shapes if not name.startswith(self.prefix)}
        return Names(stored | outside, f"{self.family.prefix}.", "", self.prefix)


def check_task(checkpoint: Checkpoint, library: str, task: str) -> None:
    """Raise PosexportError if ``--task`` names another task than the one of the library's models."""
    if checkpoint.task not in (None, task):
        label = checkpoint.config.label
        raise PosexportError(f"{label}: {library} is converted for {task}, got --task {checkpoint.task}")


def unread(config: Config, known: Set[str]) -> list[str]:
    """A remark that names the keys of a file that are neither read (``known``) nor known to have no effect."""
    names = sorted(set(config.values) - known - set(IDLE))
    return [f"{config.label}: {', '.join(names)} is not read"] if names else []


def whole_type(config: Config) -> str:
    """The ``model_type`` of the checkpoint that contains the encoder's configuration."""
    return config.outer or config.text("model_type")


def read(config: Config, prefix: str, default_type: str = "deberta-v2") -> EncoderPart:
    """Build the definition of the encoder that ``config`` describes.

    Args:
        config: the configuration of the encoder (`Config.nested`).
        prefix: the prefix of the encoder's tensors.
        default_type: the ``model_type`` if ``config`` has none.

    Raises:
        PosexportError: posexport does not define encoders of this type, or custom code may compute something else.
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
                return EncoderPart(config, family, plan, prefix)
    raise PosexportError(
        f"{config.label} says model_type = {kind!r:.60}; the encoders that posexport defines are read here, such as "
        "deberta-v2, modernbert, bert and xlm-roberta; load the model with its library, and convert it as a module"
    )
