"""Both sides of a sum in the mode `none`: docs/spec/secure-aggregation.md, *Without secure aggregation*."""

from typing import Any

from aggregation_client import AggregationClient
from aggregation_server import AggregationServer
from constants import require
from parameters import pack_words


class PlainClient(AggregationClient):
    def start(self, now: float) -> None:
        self.go_to("AWAIT_VECTOR", None)

    def announce(self, now: float) -> None:
        terms = self.terms
        self.send_vector({"complaints": terms.bitmap([]), "signatures": b""})
        self.go_to("AWAIT_SURVIVORS", now + terms.train_seconds + terms.input_seconds + terms.phase_seconds)
        self.end_when_sent()

    def admits(self, kind: str) -> bool:
        return self.state in ("AWAIT_VECTOR", "AWAIT_SURVIVORS") and kind in ("abort", "fetch-vector")

    def on_fetch_vector(self, body: dict[str, Any], now: float) -> None:
        super().on_fetch_vector(body, now)
        self.end_when_sent()

    def end_when_sent(self) -> None:
        if self.state == "AWAIT_SURVIVORS" and self.terms.chunks in (1, self.asked):
            self.go_to("DONE", None)


class PlainServer(AggregationServer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open_phase("MASKED_INPUT", list(range(self.terms.size)), self.began)

    def start(self, now: float) -> None:
        self.invite(now)

    def admits(self, member: int, kind: str) -> bool:
        if not self.over and member not in self.out:
            require(kind in ("masked-input", "vector-chunk", "abort"), "UNEXPECTED")
        return super().admits(member, kind)

    def owners(self, member: int) -> list[int]:
        return []

    def check_chunk(self, raw: bytes, chunk: int) -> list[int]:
        words = super().check_chunk(raw, chunk)
        assert self.terms.plain is not None
        self.terms.plain.check(words, chunk * self.terms.chunk_words)
        return words

    def close_masked_input(self, now: float) -> None:
        self.survivors.sort()
        require(len(self.survivors) >= max(self.terms.fewest_survivors, 1), "THRESHOLD")
        self.state, self.own_deadline = "COMPLETED", None
        assert self.terms.plain is not None
        words = pack_words(self.terms.plain.total([self.whole[member] for member in self.survivors]), 64)
        self.report({"event": "sum", "words": words, "survivors": self.terms.names(self.survivors)})
