"""From a float32 graph to float16 or bfloat16: what is computed in which type, with as few casts as that takes.

`instances` gives every call a copy of its function, `flow` decides the type of every value in the whole program,
`casts` writes what follows from that, and `instances` merges the copies that are equal in the end.
"""
