"""Options of commands and functions: records, checks, the recipe in a manifest, settings, suggestions."""
