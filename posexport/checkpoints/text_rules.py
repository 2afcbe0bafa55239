"""Reads `TextRules` from the files of sentence-transformers: prompts, truncation, lower case, similarity."""

from collections.abc import Collection

from posexport.base.spec import TextRules
from posexport.checkpoints.bundle_files import TEXTS
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError

SETTINGS = "config_sentence_transformers.json"
#: prompts of every embedder, empty by default
ALWAYS = ("query", "document")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
#: limits from here on mean "no limit": transformers writes int(1e30) into tokenizer_config.json
_NO_LIMIT = 1 << 30


def text_rules(
    directory: Directory, below: str, *, prompt_pooled: bool, default_similarity: str = "cosine"
) -> TextRules:
    """The rules of a folder; ``below``: folder of the transformer. Raises PosexportError for invalid values."""
    texts = texts_config(directory, below)
    settings = optional(directory, SETTINGS)
    prompts, default = prompts_of(settings, always=ALWAYS)
    similarity = None if settings is None else settings.values.get("similarity_fn_name")
    if similarity not in (None, *SIMILARITIES):
        assert settings is not None
        raise PosexportError(
            f"{settings.label} says similarity_fn_name = {similarity!r:.60}; known: {', '.join(SIMILARITIES)}"
        )
    return TextRules(
        max_length=max_length(directory, below),
        lower_case=texts is not None and texts.flag("do_lower_case", False),
        prompts=prompts,
        default_prompt=default,
        prompt_pooled=prompt_pooled,
        truncate_dim=None if settings is None else settings.size_or_none("truncate_dim"),
        similarity=similarity or default_similarity,
    )


def texts_config(directory: Directory, below: str) -> Config | None:
    """The settings of the Transformer module (sentence_bert_config.json); None without the file."""
    configs = (optional(directory, below + name) for name in TEXTS)
    return next((config for config in configs if config is not None), None)


def rule_files(directory: Directory, below: str) -> list[str]:
    """Names of the files with rules."""
    names = [SETTINGS, *(below + name for name in TEXTS)]
    return [name for name in names if directory.find(name) is not None]


def optional(directory: Directory, name: str) -> Config | None:
    """The JSON file ``name``; None without it."""
    return None if directory.find(name) is None else Config(directory, name)


def prompts_of(settings: Config | None, *, always: Collection[str] = ()) -> tuple[dict[str, str], str | None]:
    """The prompts by name, and the name of the default prompt; ``always``: names that need not be listed.

    A null prompt is empty, as in the library.
    """
    if settings is None:
        return {}, None
    prompts = settings.values.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise PosexportError(f"{settings.label} says prompts = {prompts!r:.80}; it must map names to texts")
    default = settings.values.get("default_prompt_name")
    if default is not None and default not in (*prompts, *always):
        raise PosexportError(
            f"{settings.label} says default_prompt_name = {default!r:.60}; it must be one of its prompts: "
            f"{', '.join(prompts) or 'there are none'}"
        )
    return {name: prompt or "" for name, prompt in prompts.items()}, default


def max_length(directory: Directory, below: str) -> int | None:
    """``max_seq_length``, else the smaller one of the tokenizer's limit and the model's; None without any."""
    texts = texts_config(directory, below)
    if texts is not None and (stated := texts.size_or_none("max_seq_length")) is not None:
        return stated
    tokenizer = optional(directory, f"{below}tokenizer_config.json")
    longest = None if tokenizer is None else tokenizer.values.get("model_max_length")
    limits = [longest, Config(directory, f"{below}config.json").values.get("max_position_embeddings")]
    return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < _NO_LIMIT), default=None)
