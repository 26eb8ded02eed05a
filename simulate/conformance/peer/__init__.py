"""The other side of a live party: honest and hostile scripts over real links, with a verdict on each.

against_client.py is a server that lies to one live client (cases in client_cases.py), against_server.py the clients of
a live server, one of which cheats (cases in server_cases.py). Of private inference we are two parties and the third is
live: against_owners.py is an owner and the dealer (cases in data_owner_cases.py and model_owner_cases.py, after whom
they test), against_dealer.py both owners (dealer_cases.py); inference_cast.py plays their cases. The rest of the cast
are our own machines.
"""
