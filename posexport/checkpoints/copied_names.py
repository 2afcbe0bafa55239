"""Names of a checkpoint's files that a bundle takes over: what ``AutoTokenizer`` and its like read, and no code."""

#: rules of sentence-transformers beside the weights: the first one that is there counts, as in the library
TEXTS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
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
    *TEXTS,
)
#: at the top: sentence-transformers and colbert-ai
TOP = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "artifact.metadata")
#: in the folders of sentence-transformers' other modules, such as projections behind the pooling
OF_MODULE = ("config.json", "model.safetensors")
#: a folder beside the weights with more chat templates, each named as its file
TEMPLATES = "additional_chat_templates"
