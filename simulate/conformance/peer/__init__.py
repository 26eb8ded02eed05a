"""The other side of a live party: honest and hostile scripts over real links, with a verdict on each.

Our parties are those of a world in memory (simulate/world), in which one is live instead; cast.py joins them to it.
against_client.py is a server that lies to one live client, against_server.py the clients of a live server, one of which
cheats; their cases are in training_cases.py. Of private inference we are two parties and the third is live:
inference_cast.py, inference_cases.py. The same of adaptation: adaptation_sides.py, with
adaptation_sums.py beside a live data owner; adaptation_cases.py.
"""
