"""What every wing shares: records of inputs and options, targets, tasks, registries, files and the machine."""
