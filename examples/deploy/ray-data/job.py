"""Encode texts with minilm: python job.py INPUT OUTPUT"""

from pathlib import Path

from posexport.serve.engines.ray_job import main

if __name__ == "__main__":
    main(
        Path(__file__).parent / "bundle",
        workers=2,
        cpus=1,  # of each worker
        rows=1024,  # of an output file
        provider="cpu",
        batch_tokens=4096,
    )
