"""Tensor-core arithmetic as named models."""
