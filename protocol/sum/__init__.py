"""One secure sum, for a client and for the server, with masks or without."""
