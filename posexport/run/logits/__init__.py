"""Logits processors: functions of token ids and scores, one file each, in transformers' order (`registry`)."""
