"""Write the examples of this folder: what `posexport deploy` makes of a bundle, without the bundle itself.

Usage: python examples/deploy/write.py BUNDLE
"""

import shutil
import sys
import tempfile
from pathlib import Path

from posexport.serve.deploy.engine import ENGINES
from posexport.serve.deploy.write import deploy

HEAVY = shutil.ignore_patterns("bundle", "model.onnx*", "tokenizer.json", "1")

if __name__ == "__main__":
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as folder:
            deploy(Path(sys.argv[1]), engine, Path(folder) / "out", name="minilm", workers=2)
            target = Path(__file__).parent / engine
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(folder) / "out", target, ignore=HEAVY)
