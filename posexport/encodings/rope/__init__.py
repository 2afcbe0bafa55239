"""Rotary position embedding: one rotation, and one file per schedule of its frequencies. One line a schedule."""

from posexport.encodings.rope import axial as axial
from posexport.encodings.rope import dynamic as dynamic
from posexport.encodings.rope import linear as linear
from posexport.encodings.rope import llama3 as llama3
from posexport.encodings.rope import longrope as longrope
from posexport.encodings.rope import mrope as mrope
from posexport.encodings.rope import ntk as ntk
from posexport.encodings.rope import proportional as proportional
from posexport.encodings.rope import yarn as yarn
from posexport.encodings.rope.rope import Rope as Rope
