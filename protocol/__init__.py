"""What the parties say to each other, when, and what is refused: messages, codec, state machines; no I/O."""
