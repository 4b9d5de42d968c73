"""Messages between brokers over TCP: handshake, links, and the transport contract.

It delivers messages. Their meaning belongs to `rules` and `replica`.
"""
