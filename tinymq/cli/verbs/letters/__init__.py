"""Verbs about dead letters and the stories of records: `tinymq dlq` and `tinymq why`.

Texts that workers wrote are shown here, and never unescaped. Verbs about topics in general are in the room above.
"""
