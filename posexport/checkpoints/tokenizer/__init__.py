"""A bundle's tokenizer.json, made so that it alone gives the ids of transformers' tokenizer. Imports no torch.

A tokenizer class of transformers reads ``tokenizer.json`` and then changes it by what ``tokenizer_config.json``,
``special_tokens_map.json`` and ``added_tokens.json`` say; other clients (transformers.js, C#, Java) read the first
alone.
"""
