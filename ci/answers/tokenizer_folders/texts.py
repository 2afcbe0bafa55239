"""Texts that tell tokenizers apart."""

TEXTS = [
    "",
    "a",
    "é",
    " ",
    "The quick brown fox wasn't there.",
    "HELLO World Café naïve Łódź",
    "e\u0301 e\u0308a\u030a ﬁ Ⅷ ½ ①",
    "東京は日本の首都です。 北京 abc",
    "Привет, мир! שלום नमस्ते",
    "😀 👍🏽 👩‍👩‍👧 🇩🇪",
    "  two  leading and trailing  ",
    "a\tb\nc\r\n\r\nd\u00a0e\u3000f",
    "ctrl\x00\x01\x7f\u200b\ufeffend",
    "<s> </s> <pad> <unk> <mask> a<mask>b",
    "[CLS] [SEP] [PAD] [UNK] [MASK] x[MASK]y",
    "<|endoftext|>text<|endoftext|> <extra> foo<extra>bar",
    "1234567 3.14159 x=y**2 // 'it's' \"q\"",
    "word " * 8,
    "supercalifragilisticexpialidocious" * 2,
    "HTTP://EXAMPLE.com/Path?q=1&B=2#frag",
]
PAIRS = [("a quick fox", "The dog."), ("", "HELLO"), ("  Café ", " two words "), ("<s> a", "b </s>")]
