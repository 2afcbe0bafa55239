"""A text model as two graphs: the token embedding, and the layers and head that read ``inputs_embeds``.

A call can start at the second graph, with a soft prompt or the hidden states of another encoder.

Shape letters: B batch, T tokens, C channels of the table.
"""

from typing import Any

from torch import Tensor, nn

from posexport.base.spec import BATCH, CARRIED, EMBEDS, MODEL, SEQUENCE, InputSpec, OutputSpec, PartSpec
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.models.arguments import of_texts
from posexport.models.definition import AroundDefinition, Part

#: the files of the graphs, as in transformers.js; an encoder's second one is `MODEL`
EMBED_FILE, DECODER_FILE = "embed_tokens.onnx", "decoder_model_merged.onnx"


class TokenTable(nn.Module):
    """Maps ids [B, T] to embeddings [B, T, C]; floating-point inputs are embeddings already and are returned.

    ``scale``: a factor of the looked-up embeddings.
    """

    def __init__(self, table: nn.Embedding, scale: float = 1.0) -> None:
        super().__init__()
        self.table, self.scale = table, scale

    @property
    def weight(self) -> Tensor:
        """The table's, by the name that code of models reads."""
        return self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        if ids.is_floating_point():
            return ids
        x_BTC: Tensor = self.table(ids)
        return x_BTC if self.scale == 1 else x_BTC * self.scale


class _Embed(nn.Module):
    """Maps token ids to embeddings, as the first graph."""

    def __init__(self, table: TokenTable) -> None:
        super().__init__()
        self.table = table

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        return (self.table(input_ids),)


class _AfterEmbeddings(nn.Module):
    """Calls ``model`` with embeddings, which its `TokenTable` returns unchanged, as the second graph."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @of_texts("inputs_embeds")
    def forward(self, inputs_embeds: Tensor, **tensors: Any) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.model(input_ids=inputs_embeds, **tensors)
        return outputs


class EmbeddingsInput(AroundDefinition):
    """``model`` with the token embedding ``table``, as two graphs; the embeddings are an additional output."""

    def __init__(self, model: Any, table: TokenTable) -> None:
        super().__init__(model)
        self.table = table

    @property
    def outputs(self) -> list[OutputSpec]:
        return [*self.model.outputs, self._embeds]

    @property
    def _embeds(self) -> OutputSpec:
        return OutputSpec(name=EMBEDS, axes=[BATCH, SEQUENCE, self.table.table.embedding_dim])

    @property
    def parts(self) -> list[Part]:
        tokens, *rest = self.inputs
        embeds = InputSpec(name=EMBEDS, dtype=MODEL_DTYPE.name, axes=self._embeds.axes, role="values")
        file = DECODER_FILE if any(spec.role in CARRIED for spec in rest) else MODEL
        return [
            _graph(EMBED_FILE, _Embed(self.table), [tokens], [self._embeds]),
            _graph(file, _AfterEmbeddings(self.model), [embeds, *rest], list(self.model.outputs)),
        ]

    @property
    def judged_by_forward(self) -> bool:
        """As ``model`` is (`posexport.proof.references.judged_by_forward`)."""
        return bool(getattr(self.model, "judged_by_forward", False))

    def uncached_logits(self, ids_BT: Tensor, mask_BT: Tensor, since: int = 0) -> Tensor:
        model: Any = self.model
        logits_BTV: Tensor = model.uncached_logits(ids_BT, mask_BT, since)
        return logits_BTV

    def forward(self, input_ids: Tensor, **tensors: Tensor) -> tuple[Tensor, ...]:
        x_BTC = self.table(input_ids)
        return (*self.model(input_ids=x_BTC, **tensors), x_BTC)


def _graph(file: str, module: nn.Module, inputs: list[InputSpec], outputs: list[OutputSpec]) -> Part:
    """A graph in ``file`` with the names of the whole model."""
    spec = PartSpec(
        file=file,
        inputs=inputs,
        outputs=outputs,
        input_names={input_.name: input_.name for input_ in inputs},
        output_names={output.name: output.name for output in outputs},
    )
    return Part(spec, module.eval())
