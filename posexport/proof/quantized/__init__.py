"""The reference of a quantized graph: the definition with the weights that are in the file.

``read`` finds quantized products and lookups in a file, ``match`` says which parameter each is and checks that it is
that parameter up to the rounding error of its scheme, ``module`` is the definition with these weights, ``as_stored``
puts it in the source. Nothing is shared with the code that quantizes (`posexport.graph.precision`).
"""
