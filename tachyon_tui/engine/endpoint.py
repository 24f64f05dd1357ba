"""Whether anything listens at an endpoint, before minutes are spent on a session that needs it."""

from __future__ import annotations

import socket
import urllib.request
from urllib.parse import urlsplit

CONNECT_SECONDS = 3.0


def unreachable(url: str) -> str:
    """Why no connection to the endpoint can be made; empty when one can, or when a proxy stands between."""
    parts = urlsplit(url)
    host = parts.hostname
    if not host or (parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host)):
        return ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return str(error.strerror or error) if isinstance(error, OSError) else str(error)
