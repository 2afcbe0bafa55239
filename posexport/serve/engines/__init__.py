"""Thin adapters between a bundle and the servers and batch engines that people already run. Imports no torch.

`posexport deploy` writes the few lines that call them. The engines do the serving; here are requests checked one by
one, joined up to a budget of tokens, and computed by `posexport.load`'s session.
"""
