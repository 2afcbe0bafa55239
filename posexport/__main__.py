"""``python -m posexport``."""

from posexport.cli import main

if __name__ == "__main__":
    main()
