"""What the export knows of a module that posexport did not define."""

from typing import ClassVar

from torch import nn


class TracedModule(nn.Module):
    """Base of modules in which attention calls are recognised during tracing.

    Each module has a separate subclass, which its copies share.
    """

    #: of every call of attention in the trace: None where it became an attention node, else why it did not
    attentions: ClassVar[list[str | None]]
