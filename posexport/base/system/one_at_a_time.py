"""The lock behind which posexport traces, proves and tries models: one thread of the process at a time.

These change settings of PyTorch that are the process's: the default dtype, the number of threads, functions that
`posexport.sources.torch_fixes` replaces. Two threads would restore each other's.
"""

import threading

#: held by convert, verify, replace and torch_onnx_export as a whole, and by every change of PyTorch
ONE_AT_A_TIME = threading.RLock()
