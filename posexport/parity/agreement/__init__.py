"""How far a quantized graph agrees with what it was made from: cosines, the best class, and what a broken one misses.

Its float32 graph is proven by the criterion (`posexport.parity.prove`): positions, masks, caches, the length guard.
Quantizing changes weights and products, so values are judged by their direction instead.
"""
