"""tinymq as the subject of a run: its clients, its logs, its leaders.

Other products are in `peers`.
"""
