"""The rules that turn pairs of texts into scores, and the tokens that a decoder scores by."""

from dataclasses import dataclass
from typing import Any

import msgspec

from posexport.checkpoints import chats
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.text_rules import SETTINGS, max_length, optional, prompts_of
from posexport.errors import PosexportError
from posexport.spec import PairRules

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
MODULES = "modules.json"
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
        return chats.with_messages(directory, below, rules)
    return _without_modules(directory, config, below, task, rules)


def _without_modules(directory: Directory, config: Config, below: str, task: str, rules: PairRules) -> PairRules:
    """The rules of a model without modules.json: its chat template, if it reads the roles of a pair.

    Else the tokenizer of a classifier joins the pair, and qwen3 uses the template of Qwen3-Reranker's model card.
    Raises PosexportError for other generating models: their files do not define how they read a pair.
    """
    template = chats.template_of(directory, below)
    if template is not None and chats.names_roles(template):
        return msgspec.structs.replace(rules, messages=chats.message_format(config.values.get("model_type"), template))
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
