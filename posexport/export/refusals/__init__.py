"""What went wrong in a user's module, one file for every message of PyTorch or ONNX Runtime that is known.

Every row has a bad module in ``tests/bad_modules``, under its own name, that meets it today, and a mended one that
converts. The first row that matches is the answer.
"""

from posexport.export.refusals import (
    antialiased_resize,
    branch_on_length,
    branch_on_values,
    fails_at_run_time,
    fixed_length,
    flex_attention,
    nested_tensor,
    recurrent,
    unknown_operator,
    value_as_size,
)
from posexport.export.refusals.refusal import Refusal

#: by the name of their file; one that is a special case of another stands before it
REFUSALS: dict[str, Refusal] = {
    module.__name__.rpartition(".")[2]: module.REFUSAL
    for module in (
        flex_attention,
        nested_tensor,
        value_as_size,
        branch_on_values,
        recurrent,
        antialiased_resize,
        branch_on_length,
        fixed_length,
        unknown_operator,
        fails_at_run_time,
    )
}
