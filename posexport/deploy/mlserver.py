"""MLServer, and KServe, which runs it in Kubernetes: Open Inference Protocol v2."""

import re

from posexport.deploy.engine import Deployment, Engine
from posexport.engines.service import embeds_texts


def values(deployment: Deployment) -> dict[str, object]:
    """Also of the image that runs MLServer (`posexport.deploy.docker`)."""
    return {"embeds": embeds_texts(deployment.manifest), "label": label(deployment.name)}


def label(name: str) -> str:
    """A name as Kubernetes takes it: at most 40 lower-case letters, digits and hyphens, first a letter."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"model-{plain}")[:40].rstrip("-")


ENGINE = Engine(
    name="mlserver",
    what="MLServer (Open Inference Protocol v2, REST and gRPC), and the same in Kubernetes by KServe",
    command="mlserver start .",
    extra="mlserver",
    values=values,
)
