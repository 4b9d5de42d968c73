"""One module for each verb of the `tinymq` command. A module is imported when its verb is used.

Code that several verbs share belongs to `common`.
"""
