"""Transport between parties: keys, rosters, endpoints over ZeroMQ with CURVE."""
