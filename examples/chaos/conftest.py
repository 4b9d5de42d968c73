"""Loads the fixtures chaos_cluster and nemesis."""

pytest_plugins = ["tinymq_chaos.real.fixtures"]
