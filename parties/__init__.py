"""Asyncio and ZeroMQ: the parties as processes, their keys, links and logs."""
