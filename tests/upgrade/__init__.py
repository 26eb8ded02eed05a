"""State of a server and three clients in the midst of a federation, a folder for each release whose state is read."""
