"""Names of a checkpoint's files that a bundle takes over: what ``AutoTokenizer`` and its like read, and no code."""

#: beside the weights
BESIDE = (
    "config.json",
    "generation_config.json",
    # fast tokenizers, and what all tokenizers read
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    # tokenizers by words, by merges and by sentencepiece, under the names that their classes know
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "normalizer.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    # images and sound
    "preprocessor_config.json",
    "processor_config.json",
    # sentence-transformers
    "sentence_bert_config.json",
)
#: at the top: sentence-transformers
TOP = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json")
#: a folder beside the weights with more chat templates, each named as its file
TEMPLATES = "additional_chat_templates"
