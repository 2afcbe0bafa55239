"""PX501: a JSON file of the repository that cannot be read."""

from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: files that clients and rules read
_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"),
    *("preprocessor_config.json", "processor_config.json", "sentence_bert_config.json", "genai_config.json"),
    "config_sentence_transformers.json",
)


def _check(subject: Subject) -> Iterator[Place]:
    files = subject.files
    for name in _FILES:
        files.json(name)
        if name in files.broken:
            yield Place(f"{name} cannot be read: {files.broken[name]}", [name])


RULE = Rule(
    code="PX501",
    name="broken-file",
    severity="error",
    finds="a JSON file of the repository is damaged, too large, or a link that leaves it",
    why="Clients read it before the graph and fail; rules that compare it with the graph say nothing.",
    remedy="Download the file again, or write it by save_pretrained of the tokenizer, processor or configuration.",
    check=_check,
    reads="folder",
)
