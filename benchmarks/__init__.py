"""What the fleet costs, measured beside a direct connection, HAProxy and a bare forwarder: `make bench`."""
