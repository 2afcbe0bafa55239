"""The options of `posexport.load` and `posexport.pipeline`."""

from typing import Annotated, Literal

import msgspec

from posexport.options import shared
from posexport.options.option import RUNTIME, Option
from posexport.targets.providers import DEFAULT_PROVIDER


class OpenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a bundle is opened."""

    precision: shared.PrecisionOfBundle = None
    provider: shared.Provider = DEFAULT_PROVIDER
    threads: shared.Threads = 0
    memory: Annotated[
        Literal["flat", "fast"],
        Option(
            group=RUNTIME,
            help="flat: a call of more than 4,096 tokens gives back the memory that it took, so that one large batch "
            "does not hold it for ever; fast: everything is kept for the next call.",
        ),
    ] = "flat"
    check: Annotated[bool, Option(group=RUNTIME, help="Compare every file with its sha256 first.")] = True
    provider_options: shared.ProviderOptions = None
