"""Addresses: what is one, and for what is none, what would be."""

import pytest

from tacit.parties.links.endpoint import host_of, resolve

HOSTS = {
    "tcp://127.0.0.1:7007": "127.0.0.1",
    "tcp://0.0.0.0:1": "0.0.0.0",
    "tcp://*:65535": "*",
    "tcp://server.hospital.example:7007": "server.hospital.example",
    "tcp://server:*": "server",
    "tcp://[::1]:7007": "::1",
    "tcp://[fe80::1%eth0]:7007": "fe80::1%eth0",
    "ipc://product/dealer": None,
}


@pytest.mark.parametrize("address", HOSTS)
def test_addresses(address: str) -> None:
    assert host_of(address) == HOSTS[address]


REFUSED = {
    **dict.fromkeys(
        ("", "server", "server:7007", "tcp://server", "tcp://:7007", "udp://server:7007", "tcp://server:0"),
        "use tcp://HOST:PORT with a port from 1 to 65535",
    ),
    **dict.fromkeys(
        ("tcp://::1:7007", "tcp://fd00::5:7007", "tcp://fd00:0:0:0:0:0:0:5:7007", "tcp://a:b:7007"),
        r"write an IPv6 address in brackets: tcp://\[fd00::5\]:7007",
    ),
    **dict.fromkeys(
        ("tcp://[127.0.0.1]:7007", "tcp://[server]:7007", "tcp://[]:7007"), "in brackets stands an IPv6 address"
    ),
    **dict.fromkeys(
        ("tcp://127.0.0.256:7007", "tcp://127.1:7007", "tcp://ser ver:7007", "tcp://a..b:7007", "tcp://-a:7007"),
        "neither a name nor an IPv4 address",
    ),
}


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=f"is not an address; .*{REFUSED[address]}"):
        host_of(address)


@pytest.mark.asyncio
async def test_a_name_that_nobody_knows() -> None:
    # RFC 2606 keeps this domain free for ever.
    with pytest.raises(ValueError, match=r"the name 'server.invalid' of tcp://server.invalid:7007 is not known here"):
        await resolve("tcp://server.invalid:7007")


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["tcp://localhost:7007", "tcp://127.0.0.1:7007", "tcp://[::1]:7007", "ipc://x"])
async def test_hosts_that_are_known(address: str) -> None:
    await resolve(address)
