"""Counterparts of a live party: honest and hostile scripts over real links, with a verdict on each.

Our parties are those of a world in memory (simulate/world), one of which is replaced by the live party; cast.py
connects them to it. against_client.py is a server that lies to one live client, against_server.py the clients of a live
server, one of which cheats; their cases are in training_cases.py. In private inference we are two parties and the third
is live: inference_cast.py, inference_cases.py. In adaptation likewise: adaptation_sides.py, adaptation_cases.py.
"""
