"""Parts common to all protocols: machines, codec, links, primitives. It depends on no protocol."""
