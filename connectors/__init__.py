"""Implementations of the interfaces that the processor reads from and writes to."""
