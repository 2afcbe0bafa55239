"""The catalogue of position encodings. One line an encoding."""

from posexport.encodings import absolute as absolute
from posexport.encodings import learned as learned
from posexport.encodings import nope as nope
from posexport.encodings import relative_key as relative_key
from posexport.encodings import relative_key_query as relative_key_query
from posexport.encodings import shaw_k as shaw_k
from posexport.encodings import shaw_kv as shaw_kv
from posexport.encodings import sinusoidal as sinusoidal
