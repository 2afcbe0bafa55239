"""The engines that need a record and templates only: Ray Data, Ray Serve, MLServer, Docker."""

from posexport.errors import PosexportError
from posexport.serve.deploy.engine import Deployment, Engine
from posexport.serve.engines.fit import embeds_texts


def _embeds(deployment: Deployment) -> dict[str, object]:
    return {"embeds": embeds_texts(deployment.manifest)}


def _check_embeds(deployment: Deployment) -> None:
    """Raises PosexportError for a bundle without vectors of texts, which is what the job of ray-data writes."""
    if not embeds_texts(deployment.manifest):
        raise PosexportError(
            f"{deployment.bundle} is for {deployment.manifest.task} and makes no vectors of texts, which the job of "
            "ray-data does; deploy it to ray-serve, mlserver or triton, or convert an embedder"
        )


RAY_DATA = Engine(
    name="ray-data",
    what="a batch job in Ray Data: parquet or JSON Lines of texts in, vectors out, resumable",
    command="python job.py texts.parquet vectors",
    extra="ray",
    check=_check_embeds,
)
RAY_SERVE = Engine(
    name="ray-serve",
    what="an HTTP service in Ray Serve: replicas, batches by tokens, health checks",
    command="serve run serve.yaml",
    extra="ray",
    values=_embeds,
)
MLSERVER = Engine(
    name="mlserver",
    what="MLServer (Open Inference Protocol v2, REST and gRPC), and the same in Kubernetes by KServe",
    command="mlserver start .",
    extra="mlserver",
    values=_embeds,
)
DOCKER = Engine(
    name="docker",
    what="an image without PyTorch: MLServer, not root, read-only",
    command="docker build -t NAME:1 .",
    shares=("mlserver",),
    links=False,
)
