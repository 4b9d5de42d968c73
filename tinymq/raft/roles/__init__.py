"""The decisions of a replica in each of its roles: Following, Candidacy, Leadership.

A role reads and changes the replica through `ReplicaState` alone. It never switches roles: `raft.replica` does.
"""
