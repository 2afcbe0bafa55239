"""Reads the modules.json of a CrossEncoder of sentence-transformers 6.

Three forms are supported: a Transformer with a classification head, a generating Transformer with ``LogitScore``
(mxbai-rerank-v2, Qwen3-Reranker), and a Transformer with pooled states that a ``Dense`` projects to ``scores``.
"""

from dataclasses import dataclass

from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.pooling import Pooling
from posexport.checkpoints.scoring import TEXT_RANKING, Answers, is_cross_encoder
from posexport.checkpoints.sentence_transformers import MODULES, STEPS, config_name, modules_of, of_pooling
from posexport.checkpoints.text_rules import texts_config
from posexport.errors import PosexportError


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


def read(directory: Directory) -> Ranker | None:
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
