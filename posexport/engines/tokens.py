"""Batches by tokens: rows of about the same length together, as many as a budget of tokens holds."""

from collections.abc import Iterator, Sequence


def by_tokens(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of rows that share a batch, the longest rows first.

    A batch of n rows is padded to its longest, so it costs n times that length: at most ``budget`` tokens, or one row.
    """
    longest_first = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(longest_first):
        longest = lengths[longest_first[start]]
        rows = max(1, budget // max(1, longest))
        yield longest_first[start : start + rows]
        start += rows
