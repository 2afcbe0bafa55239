"""What posexport changes of PyTorch while a user's module is called or traced, one file for each defect or gap.

A file names the upstream issue or the reason, the version of PyTorch in which it was last seen, and has a test in
``tests/sources/torch_fixes`` that fails once PyTorch needs it no more; then the file is removed. Two ways to change
PyTorch:

- `patch.patched` replaces an attribute of the process, and holds the lock of `posexport.base.system.one_at_a_time` as
  long.
- A function that computes a call of PyTorch in another way, called from the function mode of
  `posexport.modules.recognise.mode`, which concerns one thread alone: `adaptive_pool`, `arange`, `clamps`,
  `complex_views`, `distances`, `grouped`, `max_pool`, `shapes`, `squeezes`, `vmap_index`.

`as_exported` enters all that concerns attention.
"""
