"""Time and memory of models, ours and others', measured alike: every figure in a fresh process, contestants in turn."""
