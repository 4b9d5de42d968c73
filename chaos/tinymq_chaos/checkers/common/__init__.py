"""What checkers share: anomalies, the facts of a history, settings over time, linearizability.

No promise is checked here.
"""
