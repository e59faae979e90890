"""Verification: the reference run, five properties against it, and a three-valued verdict."""
