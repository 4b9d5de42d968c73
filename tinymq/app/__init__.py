"""One broker process: its settings, and the broker that they make.

The only room that sees all others. It wires, and decides nothing.
"""
