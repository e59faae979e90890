"""The pattern engine: expressions, patterns, windows, matcher, sequencer. Imports neither Spark nor Airflow."""
