"""The conformance kit: what another implementation, or this installation, is checked against."""
