"""posexport's version, for what stands below the package's top. `posexport.__version__` is the same."""

VERSION = "0.1.0"
