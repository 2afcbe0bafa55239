"""Checkpoint folders: settings of the tokenizer in several files, merged into the bundle's tokenizer.json."""
