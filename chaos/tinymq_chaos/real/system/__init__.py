"""The contract between a run and the cluster that it tests, tinymq or another system, and the verdict.

No cluster is started here.
"""
