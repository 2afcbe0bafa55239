"""Loads the model of a checkpoint with transformers' class for its ``model_type``."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import torch
from torch import nn

from posexport.base.tasks.registry import TASKS, all_tensors, task_of, through_transformers
from posexport.base.tasks.task import Task
from posexport.checkpoints import adapters, custom_code, label_counts, scoring
from posexport.checkpoints.config import Config
from posexport.checkpoints.families.registry import FAMILIES
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import Checkpoint
from posexport.checkpoints.pooling import Pooling
from posexport.errors import PosexportError
from posexport.models.with_adapters import WithAdapters
from posexport.nn.adapted import AdaptedEmbedding, AdaptedLinear
from posexport.sources import lazy_parameters, memory_mapped
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Model
from posexport.through import heads, lazy_load, library, masks, pages, pictures, refusals, seq2seq, timesfm, vision
from posexport.through.agreement import use_posexport_attention
from posexport.through.decoder_source import decoder_source
from posexport.through.inputs import POSITIONS, SOUND, forward_parameters
from posexport.through.module import TransformersModule, checkpoint_source, module_for_task


def make(checkpoint: Checkpoint) -> Model:
    """The model of transformers with the checkpoint's weights, its adapter and its head.

    Raises:
        PosexportError: neither transformers nor posexport defines the type, or it cannot be converted.
    """
    config, pooling = checkpoint.config, checkpoint.pooling
    # refuse by config.json alone, then choose the task
    remarks = refusals.check(config)
    transformers = library.library(f"{refusals.says_type(config)}, which")
    if pooling is None:
        task, task_remarks = _task(config, checkpoint.task, transformers)
    else:
        task, task_remarks = _task_below_pooling(pooling), []
    with library.quiet(transformers):
        # posexport opens the weights first, since its errors are one sentence
        checkpoint.weights  # noqa: B018
        model = _load(transformers, checkpoint, task)
        unread = _unread_keys(config, model.config)
        if checkpoint.adapter is not None:
            checkpoint.adapter.merge_into(model)
        adapters.put_into(model, checkpoint.adapters.values())
        # export it with its head, by the maker of its task
        maker = _OF_TYPES.get(model.config.model_type) or _MAKERS.get(task.name, _single_graph)
        if pooling is not None or checkpoint.task == scoring.TEXT_RANKING or maker not in (_single_graph, vision.make):
            lazy_parameters.materialize(model.parameters())
        if pooling is not None:
            result = _with_pooling(checkpoint, model, pooling)
        elif checkpoint.task == scoring.TEXT_RANKING:
            result = _reranker(checkpoint, model)
        else:
            result = maker(checkpoint, model, task)
        result = _with_adapters(checkpoint, result)
    result = msgspec.structs.replace(
        result,
        remarks=[*remarks, *task_remarks, *unread, *library.remarks(transformers.__version__), *result.remarks],
        labels=_labels(config, model),
        tools={"transformers": transformers.__version__},
    )
    return label_counts.with_names(result, config, label_counts.by_weight(checkpoint))


MAKER = Maker("transformers", make)


def _with_adapters(checkpoint: Checkpoint, model: Model) -> Model:
    """The model with the input that chooses among the adapters that were put into it."""
    if not checkpoint.adapters:
        return model
    if model.parts or model.limits.kv_cache:
        raise PosexportError(
            f"--adapters is for encoders through transformers, {checkpoint.config.label} is a decoder or several "
            "graphs; leave it out, and convert each adapter's folder, which merges it"
        )
    module = WithAdapters(model.module, list(checkpoint.adapters))
    adapted = {
        path: each for path, each in module.named_modules() if isinstance(each, AdaptedLinear | AdaptedEmbedding)
    }
    called: set[nn.Module] = set()
    hooks = [each.register_forward_hook(lambda one, *_: called.add(one)) for each in adapted.values()]
    with torch.no_grad():
        module(**example(inputs := [*model.inputs, module.chosen], axis_sizes(inputs, model.limits.trace_sizes)))
    for hook in hooks:
        hook.remove()
    if idle := [path for path, each in adapted.items() if each not in called]:
        raise PosexportError(
            f"{checkpoint.config.label}: transformers reads the weight of {idle[0]} in its own way, so that no row can "
            "choose an adapter of it; leave --adapters out, and convert each adapter's folder, which merges it"
        )
    return msgspec.structs.replace(model, module=module.eval(), inputs=inputs)


def _labels(config: Config, model: Any) -> list[str]:
    """The names of labels that transformers knows and config.json does not say, such as those of ImageNet."""
    names = getattr(model.config, "id2label", None) or {}
    unknown = all(name == f"LABEL_{number}" for number, name in names.items())
    return [] if config.values.get("id2label") or unknown else list(names.values())


def _single_graph(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """A model that is exported as one graph: an encoder, or a decoder with a KV cache."""
    module, remarks = _module(checkpoint.config, model, task)
    is_audio = task.name == "sequence-classification" and SOUND in forward_parameters(model)
    source = checkpoint_source(checkpoint, module, "audio-classification" if is_audio else task.name, remarks)
    return (
        decoder_source(source, model.config.get_text_config().num_hidden_layers)
        if task.name == "text-generation"
        else source
    )


def _with_pooling(checkpoint: Checkpoint, model: Any, pooling: Pooling) -> Model:
    """A model with a pooling head: sentence embeddings, or scores of a cross-encoder."""
    _without_cache(model)
    label = checkpoint.config.label
    module = heads.pooled(label, model, pooling, checkpoint.weights)
    return checkpoint_source(checkpoint, module, pooling.task, use_posexport_attention(label, module))


def _reranker(checkpoint: Checkpoint, model: Any) -> Model:
    """A causal language model as a reranker."""
    _without_cache(model)
    label = checkpoint.config.label
    module = heads.ranked(label, model, checkpoint.answers or scoring.yes_or_no(checkpoint.files, checkpoint.below))
    return checkpoint_source(checkpoint, module, scoring.TEXT_RANKING, use_posexport_attention(label, module))


def _task_below_pooling(pooling: Pooling) -> Task:
    """The task of the model below a pooling head."""
    return TASKS[pooling.built_as]


#: makers of models that transformers calls with other than tensors, by model_type
_OF_TYPES: dict[str, Callable[[Checkpoint, Any, Task], Model]] = {"timesfm": timesfm.make}
#: makers of models that are exported as several graphs, by task
_MAKERS: dict[str, Callable[[Checkpoint, Any, Task], Model]] = {
    "text2text-generation": seq2seq.make,
    "image-to-text": seq2seq.make,
    "automatic-speech-recognition": seq2seq.make,
    "audio-text-to-text": vision.make,
    "image-text-to-text": vision.make,
    "mask-generation": masks.make,
    "visual-document-retrieval": pages.make,
}


def _task(config: Config, option: str | None, transformers: Any) -> tuple[Task, list[str]]:
    """The task for the option ``--task`` or the architecture, and remarks on the choice."""
    kind, architecture = config.text("model_type"), config.architecture()
    known = ", ".join(task.name for task in through_transformers())
    declared = None if architecture is None else task_of(architecture, config.values)
    if option == "tensors" and architecture is not None:
        return all_tensors(architecture), []
    if option is not None:
        task = TASKS.get("text-generation" if option == scoring.TEXT_RANKING else option)
        if task is None or not task.ends:
            raise PosexportError(
                f"{config.label}: {kind} is not converted for {option} through transformers; it is for {known}"
            )
        return task, []
    if architecture is None:
        return TASKS["features"], [f"{config.label} names no architectures; taken for the task features"]
    if declared is not None:
        return declared, []
    if not hasattr(transformers, architecture):
        choices = ", ".join(FAMILIES[kind].all_tasks) if kind in FAMILIES else known
        raise PosexportError(
            f"{config.label} says architectures = {architecture}, which is no task here; choose --task out of {choices}"
        )
    remark = f"{architecture} is of no task that posexport knows: the graph returns every tensor that it returns"
    return all_tensors(architecture), [remark]


def _load(transformers: Any, checkpoint: Checkpoint, task: Task) -> Any:
    """Load the model in float32; a weight that the checkpoint lacks is an error, except of an unused pooler."""
    config, path = checkpoint.config, str(checkpoint.files.path / checkpoint.below)
    kind = config.text("model_type")
    try:
        settings = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as err:
        known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
        if kind not in known:
            raise PosexportError(refusals.unknown(config, transformers.__version__)) from err
        raise _failed(config, transformers, err) from err
    if (labels := label_counts.by_weight(checkpoint)) is not None:
        settings.num_labels = labels
    cls = _class(transformers, settings, config, task)
    # eager, as the reference that posexport's attention and experts are compared with
    load = partial(
        cls.from_pretrained,
        config=settings,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    try:
        lazy = lazy_load.load(checkpoint, lambda state: load(None, state_dict=state))
        model, loading = load(path) if lazy is None else lazy
    except PosexportError:
        raise
    except Exception as err:
        raise _failed(config, transformers, err) from err
    # weights that the checkpoint lacks, or that do not fit
    if missing := sorted({*loading["missing_keys"], *(str(key[0]) for key in loading["mismatched_keys"])}):
        if not all(".pooler." in f".{name}" for name in missing):
            raise PosexportError(
                f"{config.label}: the checkpoint has no {missing[0]} for {cls.__name__}"
                f"{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}; choose the task that it was "
                "trained for with --task"
            )
        _without_pooler(model)
    left_out = {name for names in checkpoint.dropped.values() for name in names}
    if needed := sorted(left_out & _names_in_files(model)):
        raise PosexportError(
            f"--drop-weights leaves out {', '.join(needed[:3])}, which {cls.__name__} of transformers needs; leave out "
            "tensors that it does not read"
        )
    # weights that the class ignores: it may compute another model than the author's code
    if config.values.get("auto_map") and (unread := _unread(model, loading["unexpected_keys"] - left_out)):
        raise PosexportError(
            f"{config.label} names the author's code (auto_map), which is never run, and the checkpoint has tensors "
            f"that {cls.__name__} of transformers does not read: {', '.join(unread[:3])}; that class may compute "
            "another model, so it is not converted"
        )
    memory_mapped.move(parameter for parameter in model.parameters() if not lazy_parameters.is_lazy(parameter))
    return model.eval()


def _unread_keys(config: Config, settings: Any) -> list[str]:
    """A remark on keys of config.json that only the custom code reads; ``settings``: transformers' configuration."""
    kind = type(settings)
    known = {name for cls in kind.__mro__ for name in getattr(cls, "__annotations__", {})} | set(kind.attribute_map)
    keys = [key for key in config.values if not (key in custom_code.IDLE or key in known or hasattr(kind, key))]
    if not keys or not config.values.get("auto_map"):
        return []
    return [f"config.json: {kind.__name__} of transformers does not read {', '.join(sorted(keys))}"]


def _names_in_files(model: Any) -> set[str]:
    """Names that the tensors of ``model`` may have in a file: with ``base_model_prefix`` and without."""
    prefix = f"{model.base_model_prefix}."
    names = set(model.state_dict())
    return names | {name.removeprefix(prefix) for name in names} | {prefix + name for name in names}


def _unread(model: nn.Module, unexpected: Iterable[str]) -> list[str]:
    """Tensors of the checkpoint that the base model ignores, without those of heads of other tasks.

    ``unexpected``: names of tensors, with or without ``base_model_prefix``.
    """
    prefix = f"{model.base_model_prefix}."
    parts = {name for name, _ in model.base_model.named_children()}  # type: ignore[union-attr]
    return sorted(name for name in unexpected if name.removeprefix(prefix).partition(".")[0] in parts)


def _class(transformers: Any, settings: Any, config: Config, task: Task) -> Any:
    """The class in ``architectures`` if it is for ``task``, else transformers' auto class for the task."""
    architecture = config.architecture()
    if architecture is not None and architecture.endswith(task.ends) and hasattr(transformers, architecture):
        return getattr(transformers, architecture)
    auto = getattr(transformers, task.auto)
    if type(settings) not in auto._model_mapping:  # noqa: SLF001 (the public way raises a list of all types)
        raise PosexportError(
            f"{config.label}: transformers has no model of {config.text('model_type')} for {task.name}"
        )
    return auto


def _failed(config: Config, transformers: Any, err: Exception) -> PosexportError:
    text = " ".join(str(err).split())
    return PosexportError(
        f"{config.label}: transformers {transformers.__version__} cannot load it: {type(err).__name__}: {text[:300]}"
    )


def _without_pooler(model: nn.Module) -> None:
    """Remove the pooler, which has no weights in the checkpoint."""
    for module in [*model.modules()]:
        if getattr(module, "pooler", None) is not None:
            setattr(module, "pooler", None)  # noqa: B010 (nn.Module declares no such attribute)


def _without_cache(model: Any) -> None:
    model.config.use_cache = model.config.get_text_config().use_cache = False


def _module(config: Config, model: Any, task: Task) -> tuple[TransformersModule, list[str]]:
    """The module to export, and the remarks of `use_posexport_attention`."""
    _without_cache(model)
    with_positions = task.name == "text-generation" and POSITIONS in forward_parameters(model)
    varies = task.sizes_vary or any(hasattr(model.config, name) for name in ("backbone_config", "pretrained_cfg"))
    if pictures.reads_images(model) and (varies or pictures.reads_any_size(model)):
        module: TransformersModule = pictures.picture_module(config.label, model, task)
    else:
        module = module_for_task(config.label, model, task, with_positions=with_positions).eval()
    return module, use_posexport_attention(config.label, module)
