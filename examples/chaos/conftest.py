"""Where the fixtures chaos_cluster and nemesis come from."""

pytest_plugins = ["tinymq_chaos.real.fixtures"]
