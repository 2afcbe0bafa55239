"""The rules that turn pairs of texts into scores: a decoder's tokens, CrossEncoder folders, chat templates.

Three forms are supported: a Transformer with a classification head, a generating Transformer with ``LogitScore``
(mxbai-rerank-v2, Qwen3-Reranker), and a Transformer with pooled states that a ``Dense`` projects to ``scores``.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from posexport.base.spec import PairRules
from posexport.base.text_rules import MessageFormat
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.pooling import Pooling
from posexport.checkpoints.sentence_transformers import MODULES, STEPS, config_name, modules_of, of_pooling
from posexport.checkpoints.text_rules import SETTINGS, max_length, optional, prompts_of, texts_config
from posexport.errors import PosexportError

#: the template of Qwen3-Reranker's model card (Qwen, "Qwen3 Embedding", arXiv:2506.05176, section 2)
QWEN3 = PairRules(
    max_length=8192,
    activation="Sigmoid",
    template="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    before="<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
WORDS = ("yes", "no")
TEXT_RANKING = "text-ranking"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Token ids of a score: the logit of ``true`` minus the logit of ``false``, or the logit of ``true`` alone."""

    true: int
    false: int | None
    label: str


def is_cross_encoder(directory: Directory) -> bool:
    """Whether sentence-transformers saved the folder as a CrossEncoder."""
    settings = optional(directory, SETTINGS)
    return settings is not None and settings.values.get("model_type") == "CrossEncoder"


def built_as(task: str, family: Family) -> str:
    """The task for which the family builds the plan that `with_score` completes for ``task``."""
    if task == TEXT_RANKING:
        return "text-generation"
    return "features" if task == "sequence-classification" and family.score is not None else task


def pair_rules(
    directory: Directory, config: Config, below: str, task: str, *, answers: Answers | None = None
) -> PairRules | None:
    """The rules that score pairs; None for other tasks. ``answers``: the token ids of a LogitScore module."""
    if task not in (TEXT_RANKING, "sequence-classification"):
        return None
    settings = _settings(directory)
    prompts, default = prompts_of(settings)
    rules = PairRules(
        max_length=max_length(directory, below),
        activation=_activation(settings, config),
        prompts=prompts,
        default_prompt=default,
    )
    if settings is not None and (task != TEXT_RANKING or answers is not None):
        return with_messages(directory, below, rules)
    return _without_modules(directory, config, below, task, rules)


def _without_modules(directory: Directory, config: Config, below: str, task: str, rules: PairRules) -> PairRules:
    """The rules of a model without modules.json: its chat template, if it reads the roles of a pair.

    Else the tokenizer of a classifier joins the pair, and qwen3 uses the template of Qwen3-Reranker's model card.
    Raises PosexportError for other generating models: their files do not define how they read a pair.
    """
    template = template_of(directory, below)
    if template is not None and names_roles(template):
        return msgspec.structs.replace(rules, messages=message_format(config.values.get("model_type"), template))
    if task != TEXT_RANKING:
        return rules
    if config.values.get("model_type") == "qwen3":
        return msgspec.structs.replace(QWEN3, max_length=rules.max_length or QWEN3.max_length)
    raise PosexportError(
        f"{config.label}: nothing says how this model reads a query and a document: there is no modules.json with "
        "LogitScore, and no chat template with the roles query and document (of qwen3 that of Qwen3-Reranker's model "
        "card is known); add one of them"
    )


def _settings(directory: Directory) -> Config | None:
    """The settings of a CrossEncoder with modules.json; sentence-transformers reads no others."""
    if not is_cross_encoder(directory) or directory.find(MODULES) is None:
        return None
    return optional(directory, SETTINGS)


def _activation(settings: Config | None, config: Config) -> str | None:
    """The class of torch.nn in the keys of versions 6, 4 and 2; None without one."""
    nested = config.values.get("sentence_transformers")
    stated: list[Any] = [
        None if settings is None else settings.values.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        config.values.get("sbert_ce_default_activation_function"),
    ]
    path = next((path for path in stated if path is not None), None)
    # code outside torch.nn is never run; sentence-transformers then uses its default
    return path.rpartition(".")[2] if isinstance(path, str) and path.startswith("torch.nn.") else None


def check_answers(answers: Answers, vocab: int) -> None:
    """Raises PosexportError for ids outside a vocabulary of ``vocab`` tokens."""
    if (most := max(answers.true, answers.false or 0)) >= vocab:
        raise PosexportError(
            f"{answers.label} names the token {most}, and the vocabulary ends at {vocab - 1}; take the file that "
            "belongs to this model"
        )


def yes_or_no(directory: Directory, below: str) -> Answers:
    """The tokens "yes" and "no" of the tokenizer in ``below``."""
    true, false = (_token(directory, below, word) for word in WORDS)
    return Answers(true=true, false=false, label=f"{directory.path}/{below}tokenizer.json")


def _token(directory: Directory, below: str, word: str) -> int:
    from tokenizers import Tokenizer

    path = directory.find(f"{below}tokenizer.json")
    if path is None:
        raise PosexportError(
            f"{directory.path} has no tokenizer.json, which says the ids of {', '.join(WORDS)}: add it"
        )
    try:
        number = Tokenizer.from_buffer(path.read_bytes()).token_to_id(word)
    except Exception as err:  # tokenizers raises Exception
        raise PosexportError(f"{path} is not a valid tokenizer.json: {err}; download it again") from err
    if number is None:
        raise PosexportError(
            f"{path} has no token {word!r}, whose logit is the score; choose --task text-generation for this model"
        )
    return int(number)


@dataclass(frozen=True, kw_only=True)
class Ranker:
    """The modules of a CrossEncoder.

    Attributes:
        below: folder of the transformer.
        task: the task of the transformer; None: the task of its class.
        answers: the token ids of a ``LogitScore`` module.
        pooling: pooling and projections to ``scores``.
    """

    below: str
    task: str | None
    answers: Answers | None = None
    pooling: Pooling | None = None


def read_cross_encoder(directory: Directory) -> Ranker | None:
    """The modules of a CrossEncoder; None for other folders and for folders without modules.json.

    Raises PosexportError for modules that are not supported.
    """
    if directory.find(MODULES) is None or not is_cross_encoder(directory):
        return None
    label = f"{directory.path}/{MODULES}"
    modules = modules_of(directory)
    names = [name for name, _ in modules]
    below = modules[0][1] if modules else ""
    if names == ["Transformer"]:
        return Ranker(below=below, task=None)
    if names == ["Transformer", "LogitScore"]:
        _check_generates(directory, below)
        return Ranker(below=below, task=TEXT_RANKING, answers=_answers(directory, modules[1][1]))
    steps = names[2:]
    if names[:2] != ["Transformer", "Pooling"] or set(steps) - set(STEPS) or steps[-1:] != ["Dense"]:
        raise PosexportError(
            f"{label} lists {', '.join(names) or 'nothing'}; of a CrossEncoder only Transformer alone, with "
            f"LogitScore, or with Pooling, any of {', '.join(STEPS)}, and a last Dense to scores are supported"
        )
    pooling = of_pooling(directory, modules, scores=True)
    if not pooling.rules.prompt_pooled:
        raise PosexportError(
            f"{pooling.label} says include_prompt = false, which is not computed for pairs of texts; set it to true if "
            "its prompts are empty"
        )
    return Ranker(below=below, task=pooling.task, pooling=pooling)


def _answers(directory: Directory, folder: str) -> Answers:
    config = Config(directory, config_name(folder))
    config.only("the logits of the last token are scored", module_input_name="causal_logits")
    false = config.values.get("false_token_id")
    return Answers(
        true=config.size("true_token_id", least=0),
        false=None if false is None else config.size("false_token_id", least=0),
        label=config.label,
    )


def _check_generates(directory: Directory, below: str) -> None:
    """Raises PosexportError unless the transformer computes next-token logits."""
    config = texts_config(directory, below)
    task = "feature-extraction" if config is None else config.text("transformer_task", "feature-extraction")
    if task != "text-generation":
        label = f"{directory.path}/{MODULES}" if config is None else config.label
        raise PosexportError(
            f"{label}: LogitScore reads logits of next tokens, and transformer_task = {task}; set it to text-generation"
        )


TEMPLATE = "chat_template.jinja"
#: files with the template in older checkpoints; the first file with a template is used
_OLDER = ("tokenizer_config.json", "chat_template.json")
#: model types with ``flat`` messages for any template (sentence-transformers 6)
_FLAT = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")
#: parts of templates that read lists of contents
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
#: ``processing_kwargs``: groups of options, with the options that are followed or have no effect
_OPTIONS: dict[str, tuple[str, ...]] = {
    "text": ("max_length", "padding", "truncation", "padding_side", "logits_to_keep"),
    "common": ("return_tensors",),
}


def template_of(directory: Directory, below: str) -> str | dict[str, Any] | list[Any] | None:
    """The chat template, or the file's list or table of named templates; None without one."""
    if (path := directory.find(below + TEMPLATE)) is not None:
        return path.read_text(encoding="utf-8", errors="replace")
    for name in _OLDER:
        config = optional(directory, below + name)
        template = None if config is None else config.values.get("chat_template")
        if isinstance(template, str | dict | list):
            return template
    return None


def names_roles(template: Any) -> bool:
    """Whether a template reads the roles ``query`` and ``document``."""
    return isinstance(template, str) and all(
        re.search(rf"[\"']{role}[\"']", template) for role in ("query", "document")
    )


def message_format(model_type: Any, template: Any) -> MessageFormat:
    """Whether messages are flat or structured, inferred as in sentence-transformers."""
    if model_type in _FLAT:
        return "flat"
    if not isinstance(template, str) or not template:
        return "structured"
    return "structured" if any(marker in template for marker in _STRUCTURED) else "flat"


def with_messages(directory: Directory, below: str, rules: PairRules) -> PairRules:
    """The rules, with ``messages`` set if the transformer's ``modality_config`` has messages."""
    texts = texts_config(directory, below)
    if texts is None:
        return rules
    rules = _with_options(texts, rules)
    modes = texts.values.get("modality_config")
    stated = modes.get("message") if isinstance(modes, dict) else None
    if stated is None:
        return rules
    # messages need a chat template, and are flat or structured as it reads them
    template = template_of(directory, below)
    if template is None:
        raise PosexportError(
            f"{texts.label} says that texts are messages (modality_config), and there is no chat template; add the "
            f"{TEMPLATE} that belongs to the model"
        )
    form = stated.get("format", "auto") if isinstance(stated, dict) else None
    if form == "auto":
        form = message_format(Config(directory, f"{below}config.json").values.get("model_type"), template)
    if form not in ("flat", "structured") or stated.get("method_output_name") not in (
        None,
        "logits",
        "last_hidden_state",
    ):
        raise PosexportError(
            f"{texts.label} says modality_config.message = {stated!r:.120}; messages must be flat or "
            "structured, and give logits"
        )
    return msgspec.structs.replace(rules, messages=form)


def _with_options(texts: Config, rules: PairRules) -> PairRules:
    """The rules with the options of ``processing_kwargs``."""
    groups = texts.values.get("processing_kwargs") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise PosexportError(f"{texts.label} says processing_kwargs = {groups!r:.80}; it must hold groups of options")
    for name, group in groups.items():
        if name == "chat_template":
            continue
        if other := sorted(set(group) - set(_OPTIONS.get(name, ()))):
            raise PosexportError(
                f"{texts.label} says processing_kwargs.{name}.{other[0]} = {group[other[0]]!r:.60}, which is not read "
                "here; remove it if the model does not need it"
            )
    chat = dict(groups.get("chat_template", {}))
    length = groups.get("text", {}).get("max_length")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise PosexportError(
            f"{texts.label} says processing_kwargs.text.max_length = {length!r:.60}; it must be at least 1"
        )
    restore_suffix = chat.pop("restore_suffix", True)
    return msgspec.structs.replace(
        rules, max_length=length or rules.max_length, chat_options=chat, suffix_kept=bool(restore_suffix)
    )
