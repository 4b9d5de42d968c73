"""The client itself: its connection, and what it has opened.

AsyncClient and Client are its public faces, in the room above. No name of this room is for applications.
"""
