"""What the fleet costs, compared with a direct connection, HAProxy and a bare forwarder: `make bench`."""
