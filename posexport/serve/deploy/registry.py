"""The engines. Imports nothing heavy: ``posexport --help`` reads it."""

from posexport.serve.deploy import docker, mlserver, ray_data, ray_serve, triton
from posexport.serve.deploy.engine import Engine

ENGINES: dict[str, Engine] = {
    module.ENGINE.name: module.ENGINE for module in (ray_data, ray_serve, mlserver, triton, docker)
}
