"""What stands between pysyncobj and the fleet: journal, snapshots, messages, transport and the guards around
them.
"""
