"""Checkpoints of types that posexport does not define: transformers' own module, converted as a module of the user's.

`checkpoint` decides and loads, `tasks` says what an architecture is for, `wrapped` calls the model by its inputs,
`attention` and `experts` are what its layers call, `decoder` is the KV cache of one that generates text, `seq2seq`
makes two graphs of an encoder-decoder (`halves`), `vision` three of a model of images and text.
"""
