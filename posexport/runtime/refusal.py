"""Why ONNX Runtime failed, in words for the caller."""

import re

from posexport.bounds import CACHE_FULL, MASK_MISFIT, POSITION_BEYOND
from posexport.targets import cuda_errors


def refusal(err: Exception) -> str | None:
    """Why a run failed, if it is something the caller can mend: the length guard's words, too little memory, a card."""
    text = str(err)
    if match := re.search(r"Name:'([^']*(?:long|short)er than \d+ (?:positions|pixels))[^']*'", text):
        return match[1]
    if match := re.search(rf"Name:'({MASK_MISFIT}|{CACHE_FULL}|{POSITION_BEYOND} \d+)[^']*'", text):
        return match[1]
    if reason := cuda_errors.failed(text):
        return reason
    if re.search(r"Available memory of \d+ is smaller than requested", text):
        return "the memory_limit that was given does not hold it; raise it, or use a smaller batch or a shorter input"
    if re.search(r"Failed to allocate memory|bad_alloc", text):
        return "there is not enough memory for it; use a smaller batch or a shorter input"
    return None
