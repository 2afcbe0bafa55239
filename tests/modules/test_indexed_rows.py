"""Ids that index the rows of another input, as edges do the nodes of a graph."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posexport
from posexport.errors import PosexportError
from posexport.modules.live_module import module_source
from tests.small import proven
from tests.tolerances import agree


class Messages(nn.Module):
    """Sums of messages between nodes that a list of edges names, each with a kind and a place."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.linear = nn.Embedding(5, 24), nn.Linear(24, 24)

    def forward(self, kinds: Tensor, places: Tensor, edges: Tensor) -> Tensor:
        x, (first, second) = self.kinds(kinds), edges
        distance = (places[first] - places[second]).norm(dim=-1, keepdim=True)
        messages = self.linear(x[second]) * torch.exp(-distance)
        return x + torch.zeros_like(x).index_add(0, first, messages)


class Table(nn.Module):
    """Ids of a table that has as many rows as the example has tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(7, 24), nn.Linear(16, 24)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.table(ids)[:, None] + self.linear(x)


class Chosen(nn.Module):
    """The token of each row that an input names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 24)

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        result: Tensor = self.linear(x[torch.arange(x.shape[0]), token])
        return result


def test_edges_are_below_the_number_of_nodes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Messages().eval()
    edges = torch.triu_indices(7, 7, 1)
    example = (torch.randint(0, 5, (7,)), torch.randn(7, 3), edges)
    done = proven(module, tmp_path / "b", example_inputs=example, axes={"places": ["nodes", 3]})
    assert any("ids of edges are below the size of" in remark for remark in done.remarks)
    session = posexport.load(tmp_path / "b")
    assert [spec.role for spec in session.inputs] == ["tokens", "values", "rows"]
    for nodes in (2, 40):
        inputs = {"kinds": torch.arange(nodes) % 5, "places": torch.randn(nodes, 3)}
        inputs["edges"] = torch.tensor([[0, nodes - 1, 1], [nodes - 1, 0, nodes - 1]])
        (got,) = session.run({name: tensor.numpy() for name, tensor in inputs.items()}).values()
        agree(got, module(**inputs).detach().numpy(), "model in float32", dtype="float32")
    few = {"kinds": np.zeros(3, np.int64), "places": np.zeros((3, 3), np.float32), "edges": [[0, 3], [1, 2]]}
    with pytest.raises(PosexportError, match=r"edges holds 3 at \[0, 1\]; it takes ids from 0 to 2"):
        session.run(few)


def test_ids_of_a_table_with_as_many_rows_are_none() -> None:
    ids = torch.tensor([6, 0])
    source = module_source(Table().eval(), {"ids": ids, "x": torch.randn(2, 7, 16)})
    assert [(spec.role, spec.size) for spec in source.inputs if spec.name == "ids"] == [("tokens", 7)]


def test_a_token_of_each_row_is_below_the_length() -> None:
    inputs = {"x": torch.randn(3, 7, 16), "token": torch.tensor([6, 0, 2])}
    source = module_source(Chosen().eval(), inputs)
    assert [(spec.role, spec.rows_of) for spec in source.inputs if spec.name == "token"] == [
        ("rows", "sequence_length")
    ]
