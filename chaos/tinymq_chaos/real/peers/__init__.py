"""Other systems under the same faults, workloads and checkers as tinymq.

Each is a subject of its own. What all subjects share belongs to `subject` and `run`.
"""
