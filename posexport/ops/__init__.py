"""The catalogue of position operators. One line an operator."""

from posexport.ops import additive_scores as additive_scores
from posexport.ops import cached_calls as cached_calls
from posexport.ops import clipped_scores as clipped_scores
from posexport.ops import clipped_values as clipped_values
from posexport.ops import concat_scores as concat_scores
from posexport.ops import contextual_scores as contextual_scores
from posexport.ops import disentangled_scores as disentangled_scores
from posexport.ops import distance_scores as distance_scores
from posexport.ops import fire_scores as fire_scores
from posexport.ops import gated_distance_scores as gated_distance_scores
from posexport.ops import grid_scores as grid_scores
from posexport.ops import head_distance_scores as head_distance_scores
from posexport.ops import position_product_scores as position_product_scores
from posexport.ops import relative_key_query_scores as relative_key_query_scores
from posexport.ops import relative_key_scores as relative_key_scores
from posexport.ops import soft_cap_scores as soft_cap_scores
