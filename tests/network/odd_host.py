"""`python odd_host.py HOURS ARGUMENT...`: `tacit ARGUMENT...` on a host whose clock is off by these hours, whose
environment names proxies and certificates that lead nowhere, and whose user has no home."""

from __future__ import annotations

import os
import sys
import time

from tacit.cli.main import app

if __name__ == "__main__":
    right, off = time.time, 3600 * float(sys.argv[1])
    vars(time)["time"] = lambda: right() + off
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE"):
        os.environ[name] = os.environ[name.lower()] = "http://127.0.0.1:9/nowhere"
    os.environ["HOME"] = "/proc/nobody"
    app(sys.argv[2:])
