"""A module that asserts something of values; pytest rewrites the assertions of files of tests."""

from torch import Tensor, nn


class Asserting(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, ids: Tensor) -> Tensor:
        lengths, (rows, most) = (ids != 0).sum(1), ids.shape
        longest = lengths.max().item()
        if self.way == "assert":
            assert longest <= most
        elif self.way == "message":
            assert longest <= most, "longer than the batch"
        elif self.way == "not":
            assert not longest > most
        elif self.way == "parts":
            assert longest > 0 and longest <= most and rows > 0  # noqa: PT018
        elif longest <= most:
            ids = 2 * ids
        return ids + lengths[:, None]
