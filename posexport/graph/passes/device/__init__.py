"""Passes for graphs on a device: no copies between host and device, fewer kernels."""
