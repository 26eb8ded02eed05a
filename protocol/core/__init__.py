"""What every protocol is made of: machines, codec, links, primitives. It knows no protocol."""
