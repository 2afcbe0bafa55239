"""What graphs are made for: element types, execution providers and their kernels.

Imports neither torch nor ONNX Runtime.

A new provider is a record in `posexport.base.targets.providers`, a new element type a row in
`posexport.base.targets.dtypes`.
"""
