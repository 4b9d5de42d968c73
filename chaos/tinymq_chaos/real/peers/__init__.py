"""Other systems under the same faults, workloads and checkers as tinymq.

Each implements the contract of `system`. Common parts of all systems belong to `system` and `run`.
"""
