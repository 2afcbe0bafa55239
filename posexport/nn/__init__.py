"""Attention and the small layers around it."""

from posexport.nn.attention import attend as attend
