"""MLServer, and KServe, which runs it in Kubernetes: Open Inference Protocol v2."""

from posexport.serve.deploy.engine import Deployment, Engine
from posexport.serve.engines.fit import embeds_texts


def values(deployment: Deployment) -> dict[str, object]:
    """Also of the image that runs MLServer (`posexport.serve.deploy.docker`)."""
    return {"embeds": embeds_texts(deployment.manifest)}


ENGINE = Engine(
    name="mlserver",
    what="MLServer (Open Inference Protocol v2, REST and gRPC), and the same in Kubernetes by KServe",
    command="mlserver start .",
    extra="mlserver",
    values=values,
)
