"""What the directory of a bundle looks like to other clients (``--layout``): one file a layout."""
