"""The 200 texts on which a bundle's tokenizer is compared with transformers'; fixed by a seed."""

# ruff: noqa: RUF001 - tokenizers differ in letters that look the same

import random
from collections.abc import Iterable

COUNT = 200
_LINE = (
    "the of and to in is was HELLO World Tokenizer don't we're it's naïve café Straße ﬁne Łódź e\u0301te\u0301 a\u0308 "
    "東京 日本語 北京 中文 한국어 Привет мир γειά κόσμε שלום مرحبا नमस्ते ไทย 😀 👍🏽 👩‍👩‍👧 🇩🇪 1234567 3.14159 "
    "2026-11-26 x**2 foo_bar() <html> {json: [1,2]} http://a.b/c?d=e#f "
    "@user #tag $9.99 50% ½ Ⅷ ① … — “quoted” 'single' \\n ~/path"
)
_WORDS = _LINE.split()
_BLANKS = (" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "")
_ENDS = (".", ",", "!", "?", ":", ";", " .", " ,", " n't", "")
_FIXED = (
    *("", "a", "Z", "é", "e\u0301", "中", "😀", " ", "\n", "\t", "\x00", "\u200b", "\ufeff", "\ufffd", "."),
    *(" leading", "trailing ", "  both  ", "\n\nlines\n\n", "ALL CAPITALS", "all small", "MiXeD", "a\x01b\x1fc\x7fd"),
    *(
        "supercalifragilisticexpialidocious" * 5,
        "a" * 300,
        "ab " * 50,
        "1" * 40,
        "......",
        "¿¡«»‚„",
        "a\u0300\u0301\u0302",
    ),
    *(
        "I'm you've he'd they'll isn't",
        "def f(x):\n    return x\n",
        "ＦＵＬＬ　ｗｉｄｔｈ",
        "ß ẞ İ ı ǅ ﬀ",
        "\u202eright\u202c left",
    ),
)


def sample_texts(special: Iterable[str]) -> list[str]:
    """The texts; ``special``: special tokens to insert into some of them."""
    drawn = random.Random(20261126)
    texts = [*_FIXED, " ".join(drawn.choice(_WORDS) for _ in range(2000))]
    for token in [*special][:20]:
        texts += [token, f"before{token} after", f" {token}\n{token.lower()}{token}"]
    while len(texts) < COUNT:
        words = (
            drawn.choice(_WORDS) + drawn.choice(_ENDS) * drawn.randrange(2) + drawn.choice(_BLANKS)
            for _ in range(drawn.randrange(1, 30))
        )
        texts.append("".join(words))
    return texts[:COUNT]


def sample_pairs(texts: list[str]) -> list[tuple[str, str]]:
    """20 pairs of texts below 200 characters."""
    short = [text for text in texts if len(text) < 200]
    return list(zip(short[:40:2], short[1:40:2], strict=True))


#: conversations; a template may raise an error for some
CHATS = (
    [{"role": "user", "content": "Hello there"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " What is 2+2?\n"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two "},
        {"role": "user", "content": "Three 😀"},
    ],
)
