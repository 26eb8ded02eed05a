"""The commands: a module for each, or for a few related ones.

A module has COMMANDS, functions or groups by their names, and PANEL, under which `tacit --help` lists them. If they
write files for programs, it has RESULTS too: the command and the type, by the name of the schema.
"""
