"""Opens the calls of an audited graph in a child process, with sizes at which it computes anything."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from posexport.base.options.commands import AuditOptions
from posexport.base.targets.provider_options import bytes_of
from posexport.errors import PosexportError
from posexport.inspect.audit.audited_graph import AuditedGraph
from posexport.inspect.audit.calls.calls import Calls
from posexport.inspect.audit.calls.inputs import Call, Inputs
from posexport.inspect.audit.calls.ports import UnknownError, ports
from posexport.inspect.audit.calls.process import Child
from posexport.run.providers import check_loads

#: pictures that are tried where a graph takes any size, height and width; and samples of sound
_PICTURES = ((64, 96), (224, 224), (32, 32), (384, 384), (512, 512), (640, 640))
_SAMPLES = (1237, 101, 16000)


@contextmanager
def opened(subject: AuditedGraph, options: AuditOptions) -> Iterator[Calls]:
    """The calls of ``subject``; the process ends with the context.

    Raises:
        UnknownError: an input cannot be fed, or no call is computed.
        EndedError: the process ended, or was ended.
        PosexportError: a size of memory that is none, a provider that does not load.
    """
    inputs = Inputs(ports(subject))
    try:
        most = bytes_of(options.memory)
    except ValueError as err:
        raise PosexportError(f"memory must be bytes, or a size such as 4GB, got {options.memory!r}") from err
    with ExitStack() as children:

        def another(path: Path, provider: str) -> Child:
            return children.enter_context(Child(path, provider, seconds=options.timeout, most=most))

        for provider in options.providers:
            check_loads(provider)
        further = [provider for provider in options.providers if provider != subject.provider]
        calls = Calls(subject, inputs, another(subject.path, subject.provider), another, further)
        yield with_sizes(calls)


def with_sizes(calls: Calls) -> Calls:
    """``calls`` at sizes of pictures and sound at which one row is computed."""
    inputs, last = calls.inputs, ""
    pictures = _PICTURES if inputs.has("height") or inputs.has("width") else _PICTURES[:1]
    for height, width in pictures:
        for samples in _SAMPLES if inputs.has("samples") else _SAMPLES[:1]:
            calls.inputs = inputs.with_sizes(height=height, width=width, samples=samples)
            for length in calls.lengths:
                answer = calls(Call(((1, length),)))
                if answer:
                    return calls
                last = answer.refusal or answer.failure
            calls.forget()
    advice = "; raise --memory if it is too little" if re.search("alloc|memory", last) else ""
    raise UnknownError(f"no call is computed, the last one says: {last:.300}{advice}")
