"""The wire: tinymq.proto (clients), peer.proto (brokers) and what is generated from them."""
