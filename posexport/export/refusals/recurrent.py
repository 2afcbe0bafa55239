"""LSTM, GRU and RNN: the exporter writes every step of the traced length as nodes of its own."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="axis sequence_length of output output was fixed at 11 by the trace (nn.LSTM)",
    pattern=r"fixed at \d+ by the trace.*\((nn\.(?:LSTM|GRU|RNN)\b[^)]*)\)",
    meaning="uses {0}, which PyTorch's exporter unrolls to the traced length",
    remedy="put attention or a causal convolution in its place, or export it with one fixed length",
    threads=(),
)
