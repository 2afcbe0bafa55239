"""The main job: load a source, export it, prove it, write the bundle.

`convert` is the entry; `options` are its options, and each step has a file.
"""
