"""Repairs, one file each, listed in `posexport.inspect.audit.registry`: each changes the nodes of one fault."""
