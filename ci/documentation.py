"""Real English sentences that every machine with Python has: the documentation strings of its standard library."""

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def paragraphs() -> list[str]:
    """All of them once, in the order of their files: text without code, of at least five words."""
    return list(dict.fromkeys(_paragraphs()))


def sentences(count: int, *, least: int = 6, most: int = 60) -> list[str]:
    """``count`` sentences of ``least`` to ``most`` words, evenly taken from all."""
    every = [
        sentence
        for text in paragraphs()
        for sentence in re.split(r"(?<=[.!?])\s+", text)
        if least <= len(sentence.split()) <= most and sentence[0].isupper() and sentence.endswith((".", "!", "?"))
    ]
    every = list(dict.fromkeys(every))
    if len(every) < count:
        raise ValueError(f"Python's documentation has {len(every)} such sentences, {count} were asked for")
    return [every[index * len(every) // count] for index in range(count)]


def _paragraphs() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        # packages are other people's, tests hold text that is no language
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(path.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for block in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    text = " ".join(block.split())
                    if len(text.split()) >= 5 and not re.search(r">>>|\.\. |::|={3}|-{4}|\| ", text):
                        yield text
