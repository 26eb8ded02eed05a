"""The machines of a protocol in memory, without sockets."""
