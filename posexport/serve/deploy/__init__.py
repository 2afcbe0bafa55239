"""Files that run a bundle in engines that exist: one module and one folder of templates for each. Imports no torch."""
