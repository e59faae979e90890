"""What people look at: plain data made from a lake or a drill's folder, without Spark and without Airflow.

Nothing here writes. Every answer is bounded, whatever the lake holds.
"""
