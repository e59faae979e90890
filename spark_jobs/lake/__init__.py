"""The lake: Delta tables, the commit protocol, and how tasks read the event log."""
