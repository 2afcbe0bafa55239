"""Rules, one file each, listed in `posexport.tools.audit.registry`."""
