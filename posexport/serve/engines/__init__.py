"""Adapters between a bundle and serving or batch engines. Imports no torch.

`posexport deploy` writes the few lines that call them. The engine serves; the adapter checks each request, joins
requests up to a budget of tokens, and computes them in the session of `posexport.load`.
"""
