"""Docker: an image without PyTorch that runs MLServer as a user without rights, on a read-only file system."""

from posexport.serve.deploy import mlserver
from posexport.serve.deploy.engine import Engine

ENGINE = Engine(
    name="docker",
    what="an image without PyTorch: MLServer, not root, read-only",
    command="docker build -t NAME:1 .",
    shares=("mlserver",),
    links=False,
    values=mlserver.values,
)
