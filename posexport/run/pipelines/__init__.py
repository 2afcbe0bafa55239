"""What ``transformers.pipeline`` returns for a task, computed from a bundle without PyTorch: one file per task."""
