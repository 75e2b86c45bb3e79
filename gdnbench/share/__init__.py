"""Copies of stores that can be given away: what a failure needs is kept, and shown to be by replay."""
