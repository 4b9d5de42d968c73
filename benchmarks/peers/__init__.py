"""The systems that tinymq is measured against: servers, and one client process each, behind one small contract.

contract.py is what benchmarks see; each other module belongs to one system. No benchmark stands here, and no figure.
"""
