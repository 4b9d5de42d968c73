pytest_plugins = ["tinymq_chaos.real.fixtures"]
