"""Faults on purpose: named phases in the real code, and plans that say what happens at one of them."""
