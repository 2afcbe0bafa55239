"""Attention and the small layers around it; `Attention` and `InputEncoding` are for models that people write."""

from posexport.encodings.positions import Positions as Positions
from posexport.nn.attention import attend as attend
from posexport.nn.attention_layer import Attention as Attention
from posexport.nn.attention_layer import StaticKVCache as StaticKVCache
from posexport.nn.input_encoding import InputEncoding as InputEncoding
