"""Shared by gdn_decode and kda_decode; no operation of its own."""
