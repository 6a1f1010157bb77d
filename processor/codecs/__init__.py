"""Formats of values: bytes to objects or columns, and back."""
