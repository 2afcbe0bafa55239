"""Globals of PyTorch that are replaced while a module is traced or tried."""
