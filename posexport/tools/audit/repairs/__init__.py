"""Repairs, one file each, listed in `posexport.tools.audit.registry`: each changes the nodes of one fault."""
