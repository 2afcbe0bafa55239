"""The main job: load a source, export it, prove it, write the bundle.

`convert` does it; a file for what it is told, and one for each step that has code of its own.
"""
