"""The other side of a live party: honest and hostile scripts over real links, with a verdict on each.

against_client.py is a server that lies to one live client (cases in client_cases.py), against_server.py the clients of
a live server, one of which cheats (cases in server_cases.py). The rest of the cast are our own machines.
"""
