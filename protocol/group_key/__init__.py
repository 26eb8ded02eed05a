"""A key that the clients agree on and the server does not learn, and the model under it."""
