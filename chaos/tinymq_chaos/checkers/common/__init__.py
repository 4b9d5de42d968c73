"""Common parts of the checkers: anomalies, facts of a history, settings over time, linearizability.

No promise is checked here.
"""
