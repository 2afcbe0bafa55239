"""A bundle's tokenizer.json, rewritten so that it alone gives the ids of transformers' tokenizer. Imports no torch.

A tokenizer class of transformers reads ``tokenizer.json`` and then changes it by ``tokenizer_config.json``,
``special_tokens_map.json`` and ``added_tokens.json``; other clients (transformers.js, C#, Java) read ``tokenizer.json``
alone.
"""
