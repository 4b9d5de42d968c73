"""PySyncObj behind one door: groups, their journal, messages, transport and host."""
