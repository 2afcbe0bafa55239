"""Ray Serve: an HTTP service with replicas and batches by tokens."""

from posexport.serve.deploy.engine import Deployment, Engine
from posexport.serve.engines.fit import embeds_texts


def _values(deployment: Deployment) -> dict[str, object]:
    return {"embeds": embeds_texts(deployment.manifest)}


ENGINE = Engine(
    name="ray-serve",
    what="an HTTP service in Ray Serve: replicas, batches by tokens, health checks",
    command="serve run serve.yaml",
    extra="ray",
    values=_values,
)
