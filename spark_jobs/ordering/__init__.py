"""Events that reach a log late: how long to wait for them, what to publish before, and what to correct after."""
