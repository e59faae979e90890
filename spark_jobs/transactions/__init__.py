"""Operators with shared state as ordered transactions: chunks run ahead of each other, and commit in order. Pure."""
