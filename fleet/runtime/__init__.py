"""Processes, sockets, threads and files of a member."""
