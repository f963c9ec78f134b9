"""What a page says after an act. Fixed phrases: what stands in an address is never shown."""

from __future__ import annotations

NOTICES: dict[str, str] = {
    "cancelled": "Cancelled.",
    "stopping": "Asked to stop. Its agent learns it with the next heartbeat.",
    "ended": "It had ended already; nothing was changed.",
    "requeued": "Put back to run now.",
    "answered": "Answered. It can run on.",
    "adopted": "The late result is the job's now.",
    "paused": "Paused. What runs goes on; nothing new is handed out.",
    "resumed": "Resumed.",
    "drained": "Drained: it gets nothing new.",
    "undrained": "It gets work again.",
    "shown": "This form was sent before. A secret is shown once, and is not shown again: where it was lost, give the token a new one.",
    "revoked": "Revoked. Its leases were given back, its sessions have ended.",
    "session": "The session has ended.",
    "out": "Logged out.",
}
