"""The processes of a federation: client and server around their machines, journals and logs."""
