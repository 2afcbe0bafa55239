"""The position operators of posexport: their names, and the file of this folder that registers each.

A file is imported when its operator is looked up (`posexport.graph.ops.operator.OPERATORS`). One line an operator.
"""

FILES = {
    "AdditiveScores": "additive_scores",
    "ClippedScores": "clipped_scores",
    "ClippedValues": "clipped_values",
    "ConcatScores": "concat_scores",
    "ContextualScores": "contextual_scores",
    "DisentangledScores": "disentangled_scores",
    "DistanceScores": "distance_scores",
    "FireScores": "fire_scores",
    "GatedDistanceScores": "gated_distance_scores",
    "GridScores": "grid_scores",
    "HeadDistanceScores": "head_distance_scores",
    "PositionProductScores": "position_product_scores",
    "RelativeKeyQueryScores": "relative_key_query_scores",
    "RelativeKeyScores": "relative_key_scores",
    "SlidingWindowScores": "sliding_window_scores",
    "SoftCapScores": "soft_cap_scores",
}
