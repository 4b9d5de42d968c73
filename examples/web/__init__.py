"""A web service: a request stores an order, and a worker in the same process sends its mail."""
