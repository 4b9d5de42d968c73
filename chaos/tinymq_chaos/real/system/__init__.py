"""What a run needs of the cluster that it tests, ours or another's: the contract and the verdict.

No cluster is started here.
"""
