"""The client: producers, readers, admin; an async core and a synchronous facade."""
