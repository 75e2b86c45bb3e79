"""PTX text to typed IR."""
