"""Bytes on one disk: segments, indexes, sync marks, ballots, recovery. Knows nothing of Raft or topics."""
