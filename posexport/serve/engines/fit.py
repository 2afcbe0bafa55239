"""Whether a bundle suits a deployment: its provider, texts or arrays. Imports nothing heavy."""

from posexport.base.targets.providers import provider_named
from posexport.base.targets.target import PORTABLE
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import Manifest


def check_provider(manifest: Manifest, provider: str) -> None:
    """Raise PosexportError for an unknown provider, and for a bundle that was converted for another one.

    A graph for CUDA has operators and types without a CPU kernel; on CUDA, nodes of a graph for the CPU would silently
    run on the host.
    """
    provider_named(provider)
    if manifest.target not in (PORTABLE, provider):
        raise PosexportError(
            f"this bundle was converted with --target {manifest.target}, the deployment is for {provider}; give "
            f"--provider {manifest.target}, or convert it again with --target {provider} or {PORTABLE}"
        )


def embeds_texts(manifest: Manifest) -> bool:
    """Whether a bundle encodes a text as one vector: it has a tokenizer and the output ``sentence_embedding``."""
    from posexport.run.embed import EMBEDDING

    return has_tokenizer(manifest) and EMBEDDING in (spec.name for spec in manifest.outputs)


def has_tokenizer(manifest: Manifest) -> bool:
    from posexport.run.texts import TOKENIZER

    return TOKENIZER in manifest.files
