"""From a finished float32 graph to one of another precision, with positions kept exact.

``half`` brings a graph to fp16 or bf16, ``rows`` quantises linear projections to int8 with a scale for every row of
activations, ``blocks`` quantises weights alone; `projections` finds what may be quantised, `selection` chooses. All of
them work on graphs with functions and bodies of control flow.
"""
