"""Ray Data: a batch job over files of texts."""

from posexport.errors import PosexportError
from posexport.serve.deploy.engine import Deployment, Engine
from posexport.serve.engines.fit import embeds_texts


def _check(deployment: Deployment) -> None:
    if not embeds_texts(deployment.manifest):
        raise PosexportError(
            f"{deployment.bundle} is for {deployment.manifest.task} and makes no vectors of texts, which the job of "
            "ray-data does; deploy it to ray-serve, mlserver or triton, or convert an embedder"
        )


ENGINE = Engine(
    name="ray-data",
    what="a batch job in Ray Data: parquet or JSON Lines of texts in, vectors out, resumable",
    command="python job.py texts.parquet vectors",
    extra="ray",
    check=_check,
)
