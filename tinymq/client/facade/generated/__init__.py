"""The synchronous classes that `make proto` generates from the asynchronous ones (tinymq/client/facade/generate.py).

Nothing here is written by hand. A method that does more than wait for the loop belongs to the class in facade/.
"""
