"""What the export knows of a module that posexport did not define."""

from typing import ClassVar

from torch import nn


class TracedModule(nn.Module):
    """Base of modules whose attention is recognised while they are traced; a subclass for each, which copies share."""

    #: of every call of attention in the trace: None where it became an attention node, else why it did not
    attentions: ClassVar[list[str | None]]
