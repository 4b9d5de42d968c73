"""The two clients that an application sees: AsyncClient, and Client for programs with threads.

Only methods that are faster in the calling thread are written here; `generated` has the others of Client, and
`generated_async` the asynchronous classes. `core` does the work.
"""
