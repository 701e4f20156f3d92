"""What the blocks of one replica are called, by its engine and by routers: the truth that relays are held against."""

from __future__ import annotations

from router.hashing import block_hashes, seed_of
from tests.simulation.world import MODEL
from workers.simulator import _ENGINE_HASHES


class Names:
    """Learnt from the texts that went through the engine, not from what it said."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._names: dict[int, tuple[int, int | None]] = {}  # the engine's hash -> the router's, and the parent

    def learn(self, tokens: bytes, salt: str) -> None:
        """Note all full blocks of a text."""
        engine = block_hashes(tokens, block_size=self._block_size, seed=seed_of(_ENGINE_HASHES, salt=salt))
        router = block_hashes(tokens, block_size=self._block_size, seed=seed_of(MODEL, salt=salt))
        self._names.update(zip(engine, zip(router, [None, *engine], strict=False), strict=True))

    def whole_chains(self, held: dict[int, int]) -> set[int]:
        """The router's hashes of those held blocks that are held together with all that comes before them."""
        whole: set[int] = set()
        for block in held:
            path: list[int] = []
            link: int | None = block
            while link is not None and link in held and link not in whole:
                path.append(link)
                link = self._names[link][1]
            if link is None or link in whole:
                whole.update(path)
        return {self._names[block][0] for block in whole}
