"""Rules, one file each, listed in `posexport.inspect.audit.registry`."""
