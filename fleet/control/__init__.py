"""The control process: failure detector, Raft leader, links between members, probes and discovery."""
