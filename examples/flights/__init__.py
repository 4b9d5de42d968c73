"""The main job behind `make run`: real data through three real brokers, one of them killed on the way."""
