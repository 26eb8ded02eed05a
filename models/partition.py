"""Partition of labelled images among the clients of a simulation.

Every partition gives each index to exactly one client and depends only on its arguments. `by_centre` keeps images from
the same place together, as between hospitals. `dirichlet` makes clients that differ in size and in their mixture of
classes: for every class, the shares of the clients are one draw from a symmetric Dirichlet distribution (Yurochkin et
al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks"; Hsu, Qi and Brown 2019, "Measuring the Effects
of Non-Identical Data Distribution").
"""

import numpy as np
import numpy.typing as npt

from tacit.models.configuration import DataConfiguration

Indices = npt.NDArray[np.int64]

_MOST_DRAWS = 10_000


def divide(
    labels: Indices, configuration: DataConfiguration, *, clients: int, seed: int, centres: Indices | None = None
) -> list[Indices]:
    """Divide as `configuration.partition` says; see `dirichlet`, `iid` and `by_centre`, which needs `centres` [N]."""
    if configuration.partition == "centre":
        if centres is None:
            raise ValueError(
                f'partition: data.source "{configuration.source}" does not say at which centre an image was taken; '
                'take data.partition "dirichlet" or "iid"'
            )
        return by_centre(centres, clients=clients, order=configuration.centres)
    if configuration.partition == "iid":
        return iid(labels, clients=clients, seed=seed)
    return dirichlet(labels, clients=clients, alpha=configuration.alpha, seed=seed)


def minimum(samples: int, *, clients: int) -> int:
    """Return the fewest images that `dirichlet` leaves to a client: 32, two batches of the default size, or a quarter
    of an equal share if that is less; never below 1."""
    return max(1, min(32, samples // (4 * clients)))


def dirichlet(labels: Indices, *, clients: int, alpha: float, seed: int) -> list[Indices]:
    """Divide int64 labels [N] unevenly; return the sorted indices of every client, int64.

    Shares are drawn again, from the same generator, until every client has at least `minimum(N, clients=clients)`
    images. Raises ValueError for fewer labels than clients, an alpha that is not positive, or if no such draw is found.
    """
    _check(labels, clients)
    if not alpha > 0.0:
        raise ValueError(f"partition: alpha is {alpha}, must be positive")
    generator = np.random.default_rng(seed)
    classes = [generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    counts = np.array([len(indices) for indices in classes])
    fewest = minimum(len(labels), clients=clients)
    for _ in range(_MOST_DRAWS):
        shares = generator.dirichlet(np.full(clients, alpha), size=len(classes))  # [classes, clients]
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * counts[:, np.newaxis]).astype(np.int64)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, np.newaxis]).sum(axis=0)
        if sizes.min() >= fewest:
            pieces = [np.split(indices, cut) for indices, cut in zip(classes, cuts, strict=True)]
            return [np.sort(np.concatenate(owned)) for owned in zip(*pieces, strict=True)]
    raise ValueError(
        f"partition: {_MOST_DRAWS} draws with alpha {alpha} left one of {clients} clients with fewer than {fewest} "
        f'of {len(labels)} images; take another alpha, fewer clients, or partition = "iid"'
    )


def iid(labels: Indices, *, clients: int, seed: int) -> list[Indices]:
    """Divide int64 labels [N] at random into parts whose sizes differ by at most 1; return sorted indices, int64.

    Raises ValueError for fewer labels than clients.
    """
    _check(labels, clients)
    order = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def by_centre(centres: Indices, *, clients: int, order: tuple[int, ...] = ()) -> list[Indices]:
    """Divide int64 centres [N] so that each stays whole; return the sorted indices of every client, int64.

    order: of all centres, ascending by default; number i in it goes to client i mod `clients`. Raises ValueError for
    more clients than centres.
    """
    found = np.array(order) if order else np.unique(centres)
    if not 1 <= clients <= len(found):
        raise ValueError(
            f"partition: {clients} clients cannot share {len(found)} centres, each of which stays whole; "
            f"take 1 to {len(found)} clients"
        )
    return [np.flatnonzero(np.isin(centres, found[client::clients])) for client in range(clients)]


def _check(labels: Indices, clients: int) -> None:
    if not 1 <= clients <= len(labels):
        raise ValueError(f"partition: {clients} clients cannot share {len(labels)} images; each needs at least one")
