"""From a float32 graph to float16 or bfloat16: a type for every value, with as few casts as possible.

`flow` has the policy and the state of a program, in which every call has a copy of its function; `types` decides the
type of every value, `casts` writes the casts; `half` is the pass.
"""
