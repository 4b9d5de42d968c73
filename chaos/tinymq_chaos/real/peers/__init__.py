"""Systems that no one here wrote, under the same faults, the same workloads and the same checkers as tinymq."""
