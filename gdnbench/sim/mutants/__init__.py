"""Mutants of a kernel's synchronisation, made mechanically from its PTX, and what finds them."""
