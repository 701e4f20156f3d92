"""Every numeric limit, named, with its unit. Each has a test named after what it stops."""

from typing import Final

# Event frames (router/wire.py).
MAX_FRAME_BYTES: Final = 16 * 2**20
MAX_FRAME_OPS: Final = 65_536
MAX_FRAME_HASHES: Final = 1_048_576
MAX_NAME_BYTES: Final = 256
MAX_BLOCK_TOKENS: Final = 65_536
MAX_COUNT: Final = 2**53
MAX_SNAPSHOT_CHUNKS: Final = 4_096

# Feed of one replica (router/feed.py).
HEARTBEAT_INTERVAL_S: Final = 0.25
LEASE_S: Final = 2.0
SNAPSHOT_TIMEOUT_S: Final = 1.0  # without a new chunk
SNAPSHOT_BACKOFF_S: Final = 0.05  # doubles with each attempt that failed or did not last
SNAPSHOT_BACKOFF_MAX_S: Final = 0.5
SNAPSHOT_CHUNK_HASHES: Final = 65_536
FEED_SETTLED_S: Final = 1.0  # live for so long, the back-off starts anew
FEED_BUFFER_FRAMES: Final = 4_096
FEED_BUFFER_HASHES: Final = 2_097_152
FEED_BEHIND_HEARTBEATS: Final = 4
RETIRED_INCARNATIONS: Final = 16

# Index and choice (router/index.py, router/load.py).
INDEX_MARGIN_BLOCKS: Final = 1_024  # beyond a replica's pool, for what one frame adds before it removes
INDEX_OFFLOADED_BLOCKS: Final = 16_777_216  # per replica, host memory and disk together
RESERVATION_TTL_S: Final = 3_600.0
MAX_RESERVATIONS: Final = 65_536
MAX_AHEAD: Final = 16  # prompts before a new one on one replica that are looked at one by one
ARRIVALS_S: Final = 60.0  # over which requests and their work are counted
MAX_BUSY_SHARE: Final = 0.9  # of a replica's time: beyond it a queue's growth says nothing of one prompt more
SLOWNESS_MAX: Final = 16.0  # times its siblings' time for a token
SLOWNESS_FORGOTTEN_S: Final = 60.0  # in which half of it is forgotten, unseen
OVERDUE_S: Final = 1.0  # by which a prefill may be late, beside twice its prediction, before its replica is avoided
MAX_SESSIONS: Final = 65_536  # whose last request is remembered (router/live.py)
SESSION_FORGOTTEN_S: Final = 3_600.0
MAX_HOLD_S: Final = 120.0  # that a new session waits while live ones fill the caches (router/admission.py)
MAX_HELD: Final = 4_096  # sessions that wait; others are let through
HOLD_ASK_S: Final = 0.5  # after which a held request asks again
HELD_FORGOTTEN_S: Final = 5.0  # after which one that does not ask has gone
SEEN_S: Final = 30.0  # over which our part of the replicas' requests is averaged
LIVE_LOW_S: Final = 10.0  # a session counts as alive at least so long after its last request
LIVE_HIGH_S: Final = 1_800.0
RATE_LOW: Final = 100.0  # tokens per second of prefill that may be learnt
RATE_HIGH: Final = 10_000_000.0
OVERSTATEMENT_SAMPLES: Final = 15  # last prefills of an optimistic replica that it is judged by
LOAD_SETTLE_S: Final = 0.1  # a request sent later than this before a gauge may not be in it yet
ACCURACY_WINDOW_S: Final = 300.0

# When replicas fail (router/retry.py, router/quarantine.py, cluster/durable.py, cluster/serve_plane.py).
MAX_RETRIES: Final = 2  # further attempts of a generation before its first token
MAX_RESUMES: Final = 2  # replicas on which it goes on after its first token
RETRY_SHARE: Final = 0.2  # of the requests of a window that may be attempts after an engine's fault
RETRY_FLOOR: Final = 3  # that may be attempted again in a window however few requests there are
RETRY_WINDOW_S: Final = 10.0
QUARANTINE_DEATHS: Final = 2  # replicas that died over a request, before it is refused
QUARANTINE_S: Final = 60.0
MAX_SUSPECT_REQUESTS: Final = 4_096  # whose replica died and who are remembered for it
SUSPECT_S: Final = LEASE_S  # a replica that was seen to fail is passed over; after that its lease speaks for it
STALL_CHECK_S: Final = 0.25  # between two looks at a stream whose replica is silent; nothing new ends it

# Sockets to replicas (router/subscriber.py).
TICK_INTERVAL_S: Final = 0.1
SUBSCRIBER_HWM_FRAMES: Final = 10_000
SUBSCRIBER_BATCH: Final = 64  # messages of one socket before others get their turn
REQUESTS_HWM: Final = 4
RELINK_INTERVAL_S: Final = 2.0  # of silence, before the sockets are opened anew

# Sockets of a replica (workers/publisher.py).
PUBLISHER_HWM_FRAMES: Final = 10_000  # per subscriber; beyond it frames are dropped and the subscriber resyncs
SNAPSHOT_REPLIES_HWM: Final = 1_024
REQUESTS_AT_ONCE: Final = 16  # read before frames and others get their turn
MAX_WAITING_SNAPSHOTS: Final = 256  # routers waiting for one; others ask again

# A replica's own view of its engine's event socket (workers/engine_events.py).
ENGINE_EVENTS_HWM: Final = 100_000
ENGINE_PENDING_BATCHES: Final = 100_000
ENGINE_REPLAY_INTERVAL_S: Final = 1.0  # how often an idle engine is asked whether the last batches were lost
REPLAY_PATIENCE_S: Final = 5.0  # without an answer, an engine is asked again
ENGINE_HEALTH_INTERVAL_S: Final = 0.25  # how often an engine is asked whether it lives (workers/event_pump.py)

# Data plane between ingress and replica (workers/data_*.py, cluster/data_plane.py).
MAX_DATA_OPEN_BYTES: Final = 64 * 2**20  # a prompt with its settings
MAX_DATA_DELTA_BYTES: Final = 8 * 2**20
MAX_DATA_ERROR_CHARS: Final = 4_096
MAX_DATA_CONNECTIONS: Final = 1_024  # to one replica
MAX_DATA_STREAMS: Final = 65_536  # on one connection; slots bound them before
DATA_PROOF_TIMEOUT_S: Final = 5.0  # for a connection to prove that it knows the secret
DATA_CONNECT_TIMEOUT_S: Final = 2.0
DATA_RECONNECT_S: Final = 0.25  # after a failure, before the next attempt
DATA_WRITE_HIGH_BYTES: Final = 2**20  # unsent, beyond which streams wait
DATA_STREAM_TOKENS: Final = 1_024  # held for a slow reader, beyond which the replica is asked to pause
DATA_SILENCE_MS: Final = 5_000  # of a machine that no longer answers, before its connection is lost
DATA_CLOSE_S: Final = 1.0  # for what was written to leave

# Engine events (workers/kv_events.py, workers/relay.py).
MAX_ENGINE_BATCH_BYTES: Final = 64 * 2**20
MAX_RELAY_BLOCKS: Final = 16_777_216  # copies of blocks over all tiers of one engine
MAX_ATTENTION_GROUPS: Final = 1_024  # of one engine
MAX_PARKED_BLOCKS: Final = 65_536  # whose parent has not been announced yet
MAX_VERDICT_REASONS: Final = 16

# What a simulated engine says (workers/answers.py, workers/json_instance.py).
MAX_SIM_ANSWERS: Final = 1_024
SIM_ANSWER_PROMPT_TOKENS: Final = 4_096  # of a prompt's end, in which scripted answers look for their place
MAX_SIM_INSTANCE_PARTS: Final = 10_000  # values and characters of the smallest instance of a JSON schema
MAX_SIM_INSTANCE_DEPTH: Final = 64

# HTTP requests (cluster/api, cluster/ingress.py).
MAX_BODY_BYTES: Final = 32 * 2**20
MAX_BODY_MARKS: Final = 2**20  # opening brackets and quotes of a body, about two of each value
MAX_BODY_COMMAS: Final = 2**22
INLINE_BODY_BYTES: Final = 256 * 2**10  # larger ones are read in a thread, not on the event loop
MAX_JSON_DEPTH: Final = 64
MAX_NUMBER_CHARS: Final = 256
MAX_MODEL_NAME_CHARS: Final = 256  # that an alias is looked for
MAX_MESSAGES: Final = 100_000
MAX_STOP_SEQUENCES: Final = 16
MAX_STOP_SEQUENCE_CHARS: Final = 64
MAX_BLOCKS_PER_MESSAGE: Final = 10_000
MAX_TOOLS: Final = 2_048
MAX_CHOICES: Final = 128  # answers to one request: choices of all its prompts
MAX_TOP_LOGPROBS: Final = 20  # alternatives of each token
MAX_COMPLETION_LOGPROBS: Final = 5  # the same of Completions
MAX_LOGIT_BIAS_TOKENS: Final = 1_024
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_PROMPT_TOKENS: Final = 2**21  # of all prompts of a request that gives them as tokens
MAX_SAMPLING_FIELD_BYTES: Final = 64 * 2**10  # of one wish to the sampler; longer ones go unread
MAX_TOOL_NAME_CHARS: Final = 128
MAX_SCHEMA_BYTES: Final = 256 * 2**10
MAX_SCHEMA_DEPTH: Final = 48
MAX_IGNORED_FIELDS: Final = 16
MAX_HINT_CHARS: Final = 256
MAX_LOGGED_LINES: Final = 8  # attribution lines kept in a request's log line
MAX_ECHOED_BYTES: Final = 4_096  # of a request field that a Responses answer repeats
MAX_REMEMBERED_RESPONSES: Final = 1_024  # per tenant, for `previous_response_id`
REMEMBERED_RESPONSES_BYTES: Final = 64 * 2**20  # of all tenants together
PING_INTERVAL_S: Final = 10.0
FLUSH_MS: Final = 10.0  # between events of a stream that can wait, unless an operator wants it otherwise
MAX_FLUSH_MS: Final = 100.0

# Tenants (cluster/tenant_file.py).
MAX_TENANTS: Final = 10_000
MAX_KEYS_PER_TENANT: Final = 64

# A call's arguments (cluster/output/arguments.py): what a client can send back in its next request.
MAX_ARGUMENT_DEPTH: Final = 48
MAX_ARGUMENT_NUMBER_CHARS: Final = 256

# Prompts (cluster/prompt, cluster/models).
MAX_CHANGES: Final = 1_024  # reported of one request, of all canonical rules
MAX_CHANGE_CHARS: Final = 1_024  # of the text that one change reports
SEGMENT_CACHE_BYTES: Final = 64 * 2**20
REMEMBERED_PIECES: Final = 2**16  # words and the like whose tokens an encoder of ASCII text knows
MAX_PIECE_CHARS: Final = 64  # of one that is remembered
REMEMBERED_TOOL_LISTS: Final = 64  # of one model, as parsers of answers want them
MAX_REMEMBERED_TOOLS_CHARS: Final = 2**20  # of one of those
MAX_PIECEWISE_CHARS: Final = 32 * 2**10  # of a text that is encoded piece by piece, holding the interpreter lock
THREAD_MEMORY_BYTES: Final = 256 * 2**20  # conversations whose prompts are known, of one model in one ingress
WARM_BODY_BYTES: Final = 2 * 2**20  # larger bodies are read as a whole, in threads
WARM_TAIL_BYTES: Final = 64 * 2**10  # of new messages that are read on the event loop
MAX_CHARS_PER_TOKEN: Final = 64  # of a context window's tokens; text beyond it is refused unrendered
INLINE_PROMPT_CHARS: Final = 16_384
TURN_MEMORY_BYTES: Final = 64 * 2**20  # generated turns that one ingress remembers, all tenants and models together
MAX_REDRAFTS: Final = 4  # of a prompt, to find which of its generated turns can be spliced
MAX_OPENING_TOKENS: Final = 64  # of a prompt's end, in which its last atom is looked for

# Shared KV blocks (workers/kv_store/).
KV_STORE_BYTES: Final = 2 * 2**30  # of a node's store, unless the config says otherwise
LEAST_KV_STORE_BYTES: Final = 16 * 2**20
KV_LOAD_DEADLINE_S: Final = 2.0  # after which a request computes what has not arrived
