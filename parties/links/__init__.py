"""How bytes travel between parties: keys, rosters, endpoints over ZeroMQ with CURVE."""
