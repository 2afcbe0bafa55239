"""Converts checkpoints of types that posexport does not define, by transformers' implementation of the model.

`checkpoint` loads the model and chooses the task (`tasks`); `module` is the ``nn.Module`` that is exported;
`attention` and `experts` are registered with transformers and called by its layers; `decoder` adds the KV cache to
causal language models; `seq2seq` exports encoder-decoders as two graphs (`halves`), `vision` vision-language models as
three.
"""
