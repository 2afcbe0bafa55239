"""A decoder that was traced without a KV cache gets one (`posexport.graph.passes.cache`)."""

from typing import ClassVar

import onnx_ir as ir

from posexport.graph.passes.graph_pass import Context, GraphPass, PassResult, Phase


class InsertCache(GraphPass):
    """The KV cache of a decoder that was traced without one.

    Before: ``Attention(q, k, v)`` of all tokens of a call
    After:  ``Attention(q, Concat(past_key_values.0.key, k), Concat(past_key_values.0.value, v))`` of its new tokens
    """

    name = "insert-cache"
    description = "gives a decoder that was traced without a KV cache one"
    phase: ClassVar[Phase] = "cache"

    def concerns(self, context: Context) -> bool:
        return context.cache is not None

    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Insert the cache; raises NotInsertedError."""
        # most conversions need none of its files
        from posexport.graph.passes.cache.insert import insert_cache

        assert context.cache is not None
        names = {value.name for value in model.graph.inputs}
        inserted = insert_cache(
            model,
            "input_ids",
            "attention_mask" if "attention_mask" in names else None,
            context.target.longest,
            "position_ids" if "position_ids" in names else None,
            static=context.cache.static,
            at_read=context.cache.at_read,
        )
        return PassResult(len(inserted.shapes))
