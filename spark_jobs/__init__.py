"""Reprise: row patterns in partitioned event logs on Spark, with recovery that is proven, not assumed."""

__version__ = "0.4.0"
