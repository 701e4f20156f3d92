"""Every numeric limit, named, with its unit. Each has a test named after what it stops."""

from typing import Final

# Event frames (router/wire.py).
MAX_FRAME_BYTES: Final = 16 * 2**20
MAX_FRAME_OPS: Final = 65_536
MAX_FRAME_HASHES: Final = 1_048_576
MAX_NAME_BYTES: Final = 256

# Feed of one replica (router/feed.py).
HEARTBEAT_INTERVAL_S: Final = 0.25
LEASE_S: Final = 2.0
SNAPSHOT_TIMEOUT_S: Final = 2.0
SNAPSHOT_CHUNK_HASHES: Final = 65_536
FEED_BUFFER_FRAMES: Final = 4_096

# HTTP requests (cluster/api, cluster/ingress.py).
MAX_BODY_BYTES: Final = 32 * 2**20
MAX_JSON_DEPTH: Final = 64
MAX_MESSAGES: Final = 100_000
MAX_STOP_SEQUENCES: Final = 16
MAX_STOP_SEQUENCE_CHARS: Final = 64
PING_INTERVAL_S: Final = 10.0
