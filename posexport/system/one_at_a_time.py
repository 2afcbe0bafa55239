"""Conversions and proofs of one process wait for one another.

While PyTorch traces and proves a model, its global settings are changed (default dtype, threads, functions that
exporting replaces), so two threads would change each other's.
"""

import threading

#: held by a conversion, and by a verification that runs PyTorch
ONE_AT_A_TIME = threading.RLock()
