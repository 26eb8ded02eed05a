"""What a model owner keeps of the rounds of learning: its shares of what data owners have learned, and the last sum.

The sum of a round is on the disk before it is told to anybody, with how many were told before: so a model owner that is
started again tells no other sum of that round, and no more sums than its policy has. Who learns, or is told a sum, is
there before it is answered, so that no more do over restarts than the policy has. Noise is drawn once for a round, and
is a part of what is kept. Shares of a round that is not summed yet are in memory alone; with them the round is lost, no
more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from tacit.models.file_system import FILES, replace_file
from tacit.parties.adaptation.noise import SumNoise
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums

_Number = Annotated[int, Meta(ge=0, le=2**31)]


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    opened: _Number = 0
    """How many sums were told."""
    current: _Number = 0
    """The round of the last of them."""
    survivors: tuple[str, ...] = ()
    """Whose shares its sum is of."""
    owners: frozenset[str] = frozenset()
    """Who learns, or was told a sum."""
    counts: dict[str, _Number] = {}
    """How many images they have, as they have stated it."""
    spent: Annotated[float, Meta(ge=0.0)] = 0.0
    """What the sums told cost, by the account of their noise: infinite if one had none."""
    words: bytes = b""
    """It, 8 bytes a word."""


class Openings:
    """path: of the file, 0600; None: in memory alone; noise: on every sum. ValueError for a file that is none, and for
    a budget of noise that has no room for what is to be learned."""

    def __init__(self, policy: OpeningPolicy, path: Path | None = None, *, noise: SumNoise | None = None) -> None:
        self._path, self._noise = path, noise
        kept = _Kept()
        if path is not None:
            try:
                kept = msgspec.msgpack.decode(FILES.read(path), type=_Kept)
            except FileNotFoundError:
                pass
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{path} does not say which sums were told ({error}): restore it; without it more rounds than the "
                    "policy allows would be opened"
                ) from None
        if (
            noise is not None
            and (most := noise.rounds(policy.rounds, opened=kept.opened, spent=kept.spent)) < policy.rounds
        ):
            policy = replace(policy, rounds=most, because="as its budget of noise has room for")
        self.sums = RoundSums(
            policy,
            opened=kept.opened,
            current=kept.current,
            survivors=kept.survivors,
            owners=set(kept.owners),
            counts=dict(kept.counts),
        )
        """When a sum may be told."""
        self._kept = kept
        """What the file has."""
        self._shares: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}
        """By data owner and round, with its weight: of the last round that it has ended, and of one that is final."""

    def keep(self, owner: str, number: int, words: torch.Tensor, weight: int = 1) -> None:
        """The model owner's share of what this one has learned in a round, int64 [n], times its weight. In the place of
        an earlier one that no sum waits for: whoever ends round after round takes no more memory than others. Nothing
        is kept for a round that it has not ended last, unless it is final."""
        if number in (final := self.sums.current, self.sums.kept.get(owner)):
            for name, round in [*self._shares]:
                if name == owner and round != final:
                    del self._shares[name, round]
            self._shares[owner, number] = words, weight

    def verdict(self, number: int) -> str | None:
        """As RoundSums has it; None also as long as a share of the final round is not kept: RoundSums knows of it from
        its session, which may still be at work on it."""
        verdict = self.sums.verdict(number)
        missing = [name for name in self.sums.survivors if self._shares.get((name, number)) is None]
        return None if verdict == "" and missing and number != self._kept.current else verdict

    @property
    def spent(self) -> float:
        """What the sums told have cost so far, as protections/budget.py counts."""
        return self._kept.spent

    def save(self) -> None:
        """Have on the disk who learns, or asks for a sum, before one of them is answered. OSError if it cannot be."""
        self._write(self._kept)

    def opened(self, number: int) -> bytes:
        """The sum of a round whose verdict is that it may be told, on the disk with all who are told it, this asker
        too: 8 bytes a word. OSError if it cannot be kept."""
        sums, kept = self.sums, self._kept
        if number == kept.current:
            self.save()
        else:
            shares, weights = zip(*(self._shares[name, number] for name in sums.survivors), strict=True)
            total = torch.stack(shares).sum(0)
            if self._noise is not None:
                total += self._noise.words(sum(weights), len(weights))
            summed = _Kept(
                opened=sums.opened,
                current=number,
                survivors=sums.survivors,
                spent=kept.spent + (math.inf if self._noise is None else self._noise.cost),
                words=total.numpy().astype("<i8").tobytes(),
            )
            self._write(summed)
            self._shares = {key: share for key, share in self._shares.items() if key[1] > number}
        return self._kept.words

    def _write(self, kept: _Kept) -> None:
        """This, with all owners that there are now, in the place of what the file has, if that differs."""
        kept = msgspec.structs.replace(kept, owners=frozenset(self.sums.owners), counts=dict(self.sums.counts))
        if kept != self._kept:
            if self._path is not None:
                replace_file(self._path, msgspec.msgpack.encode(kept))
            self._kept = kept
