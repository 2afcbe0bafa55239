"""An ONNX file in, a better one out, without PyTorch.

queries asks graphs of onnx_ir, edits and builder change them; ops has the records of position operators, passes
recognise and optimise, lowering writes attention, precision converts the finished graph.
"""
