"""What proves who a caller is, and what a caller may do, as values that brokers, clients and the CLI share.

Who exists and what each one was granted is known to the registry alone (tinymq/access). No decision is made here.
"""
