"""Folders of other libraries: gliner, gliclass, Chronos, timm, open_clip. The core finds them by registries."""
