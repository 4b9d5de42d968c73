"""tinymq as the system under test: its clients, its logs, its leaders.

Other systems are in `peers`.
"""
