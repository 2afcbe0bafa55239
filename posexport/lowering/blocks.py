"""The size of a block."""

#: queries of a block; more than one of causal attention are better cut: half of their keys are never looked at, and a
#: softmax over dropped ones is slow (what they come to is too small for a normal number)
BLOCK = 128
