"""A folder for files that a conversion makes and copies into its bundle."""

import atexit
import shutil
import tempfile
from pathlib import Path


def scratch_folder() -> Path:
    """A new folder that lasts as long as the process: a source's files are copied when its bundle is written."""
    folder = tempfile.mkdtemp(prefix="posexport-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
