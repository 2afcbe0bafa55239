"""minilm in Ray Serve."""

from pathlib import Path

from posexport.serve.engines.ray_serve import application

app = application(
    Path(__file__).parent / "bundle",
    replicas=2,
    cpus=1,  # of each replica
    provider="cpu",
    batch_tokens=4096,
)
