"""PARTY.toml: the settings of a party on its own host, one schema tagged by `role`; read, checked, and documented.

The roster and the experiment that the server proposes hold everything that all parties must agree on. There is no key
for a seed: on hosts all randomness is the operating system's. Paths are relative to the file's own folder. All parties
of an adaptation state its rounds and batches in their files: a difference is refused, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from tacit.models.adapters.configuration import (
    AdapterConfiguration,
    Batches,
    Colluders,
    ParallelConfiguration,
    SmallestCohort,
    TeachingConfiguration,
    Weights,
)
from tacit.models.configuration import ImagesConfiguration, at_home, image_paths
from tacit.models.workload import FactoryError, check_installed
from tacit.parties.hosting.protocols import PROTOCOLS, ProtocolName
from tacit.parties.learning.policy import ClientPolicy, rules
from tacit.parties.links.endpoint import host_of
from tacit.parties.runs.experiment import Aggregation, Deadlines, literal, read_section, read_toml, refusal
from tacit.parties.runs.experiment import Seconds as DeadlineSeconds
from tacit.parties.runs.reference import commented_toml
from tacit.protocol.adaptation.messages import Purpose
from tacit.protocol.core.roster import Role
from tacit.protocol.inference.audit import audited_of
from tacit.protocol.inference.data_owner import PASSES_A_DAY, REFUSED_A_DAY, InferencePolicy
from tacit.protocol.inference.messages import MOST_IMAGES, Images
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.schedule import LOGITS, MOST_LABELS, Results

Rounds = Annotated[int, Meta(description="Rounds of training; the same for all parties.", ge=1, le=99_999)]


class SummingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation] of a dealer, which also serves the data owners' sums of shares. ValueError if keys contradict."""

    sums: Annotated[
        str,
        Meta(
            description="Address to listen at for the sums, tcp://HOST:PORT, beside `bind`: an address of this host, "
            "0.0.0.0 for all of them, or [::] for all of IPv6 as well."
        ),
    ] = "tcp://0.0.0.0:7010"
    words: Annotated[
        int,
        Meta(
            description="Words of a share of the trained parameters: the number that `tacit model-owner` "
            "shows, which follows from its model, and is no secret.",
            ge=0,
            le=1 << 28,
        ),
    ] = 0
    rounds: Rounds = 10
    smallest_cohort: SmallestCohort = 3
    colluders: Colluders = 0
    aggregation: Annotated[Aggregation, Meta(description="The secure sum.")] = Aggregation()
    deadlines: Annotated[Deadlines, Meta(description="Timeouts of the dealer for data owners, in seconds.")] = (
        Deadlines()
    )

    def __post_init__(self) -> None:
        check_addresses(True, **{"adaptation.sums": self.sums})
        if not self.words:
            raise ValueError(
                "adaptation.words is missing: the number of words of a share, which `tacit model-owner` shows"
            )
        if self.aggregation.mode == "none":
            raise ValueError(
                'adaptation.aggregation.mode = "none": the shares of single data owners would be seen; take "active" '
                'or "semi-honest"'
            )


class TeachingSection(TeachingConfiguration, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation] of a model owner. ValueError if keys contradict."""

    purpose: Annotated[
        Purpose, Meta(description='Purpose: "learning" (training), or "prediction" with the trained adapters.')
    ] = "learning"
    classes: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(
            description="Class names of the training, in the order that numbers them; sent to data owners.",
            max_length=4096,
        ),
    ] = ()
    rounds: Rounds = 10
    owners: Annotated[int, Meta(description="Most data owners that train; 0: all of the roster.", ge=0, le=10_000)] = 0
    least_count: Annotated[
        int,
        Meta(
            description='With weights = "counts": the fewest images of a data owner, which then has the '
            "weight 16; with twice as many or more, it has the weight 32.",
            ge=0,
            le=2**31,
        ),
    ] = 0
    adapter: Annotated[AdapterConfiguration, Meta(description="Adapters that are trained beside the model.")] = (
        ParallelConfiguration()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.weights == "counts") != (self.least_count > 0):
            raise ValueError(
                f'adaptation.least_count = {self.least_count}: with weights = "counts" the fewest images of a data '
                "owner, and without it 0"
            )
        if len(set(self.classes)) < len(self.classes) or len(self.classes) < 2:
            raise ValueError(
                f"adaptation.classes = {literal(list(self.classes))}: two classes at least are learned, each once"
            )
        if (images := self.batch * self.batches * self.rounds) > MOST_IMAGES:
            raise ValueError(
                f"adaptation.rounds = {self.rounds}: with {self.batches} batches of {self.batch} a data owner goes "
                f"through {images} images, and a session has {MOST_IMAGES} at most; take fewer"
            )
        if 0 < self.most_rounds < self.rounds:
            raise ValueError(
                f"adaptation.most_rounds = {self.most_rounds}: {self.rounds} rounds could not be opened; lower "
                "adaptation.rounds"
            )


class LearningSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[adaptation] of a data owner. ValueError if keys contradict."""

    purpose: Annotated[
        Purpose,
        Meta(
            description='"learning" (training), or "prediction": private inference on `images` with the '
            "adapters trained in `directory`, for which no other key of this section is needed."
        ),
    ] = "learning"
    sums: Annotated[str, Meta(description="Address at which the dealer serves the sums, tcp://HOST:PORT.")] = ""
    weights: Annotated[
        Weights,
        Meta(
            description='Weight in the mean: "equal", or "counts", by its number of images, which it then '
            "discloses to the model owner; as in the model owner's file."
        ),
    ] = "equal"
    batches: Batches = 1
    rounds: Rounds = 10
    smallest_cohort: SmallestCohort = 3
    colluders: Colluders = 0
    grace: Annotated[DeadlineSeconds, Meta(description="Seconds for a lost link to the sums to reconnect.")] = 10.0

    def __post_init__(self) -> None:
        if not self.sums and self.purpose == "learning":
            raise ValueError("adaptation.sums is missing: the address at which the dealer serves the sums")
        if self.sums:
            check_addresses(**{"adaptation.sums": self.sums})


def check_addresses(listens: bool = False, /, **addresses: Any) -> None:
    """ValueError, which names the key; listens: it binds these addresses, which may be wildcards."""
    for key, address in addresses.items():
        try:
            if host_of(address) == "*" and not listens:
                raise ValueError("one listens at all addresses, and connects to one: name the host")
        except ValueError as error:
            raise ValueError(f"{key} = {literal(address)}: {error}") from None


def check_protocol(protocol: ProtocolName, setting: str, value: object, *, key: str = "") -> None:
    """ValueError, which names the key, for a setting that the protocol does not support."""
    if reason := PROTOCOLS[protocol].refusal(setting, value):
        raise ValueError(f"{key or setting}: {reason}")


Seconds = Annotated[float, Meta(gt=0.0, le=604_800.0)]
Device = Annotated[Literal["cpu", "cuda"], Meta(description="Device of its computations.")]
AnswerSeconds = Annotated[
    Seconds,
    Meta(
        description="Seconds in which a connected peer must answer: a dealer waits this long for either "
        "owner, owners twice as long for the dealer and three times for each other. The same for all three."
    ),
]
OwnersProtocol = Annotated[
    ProtocolName,
    Meta(
        description='Protocol of the computation on shares: "tacit", or "crypten", CrypTen\'s tensors with '
        "a student of `tacit distill` alone, and without range checks (docs/crypten.md). The same for model "
        "owner and data owner."
    ),
]
PatienceSeconds = Annotated[
    Seconds, Meta(description="Seconds to wait for unreachable or lost parties before it gives up.")
]


class LogConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[log]: the human-readable log DIRECTORY/logs/NAME.log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severity of logged events.")
    ] = "info"
    megabytes: Annotated[int, Meta(description="Size at which a log file is rotated.", ge=1, le=10_000)] = 10
    files: Annotated[int, Meta(description="Number of rotated files to keep.", ge=0, le=1000)] = 5


class OwnImagesConfiguration(ImagesConfiguration, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[data] of a client."""

    indices: Annotated[
        str,
        Meta(
            description="A .npy file of int64: indices of this client's images among the training images. A "
            'simulation writes one for each of its clients. "": all.'
        ),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.indices and self.factory:
            raise ValueError("data.indices is not used where data.factory gives the data; leave it out")


class PartyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="role"):
    """Settings common to all parties."""

    example: ClassVar[dict[str, Any]] = {}
    """Values of the keys without defaults, for `tacit config`."""
    enrolled: ClassVar[Role] = "server"
    """The role of the party in the roster."""

    key: Annotated[str, Meta(description="The party's own key file, NAME.key.", min_length=1)]
    roster: Annotated[str, Meta(description="The roster, the same for all parties.", min_length=1)] = "roster.toml"
    directory: Annotated[
        str, Meta(description="Folder for all files that the party writes; of this party alone.", min_length=1)
    ] = "state"
    log: Annotated[LogConfiguration, Meta(description="The human-readable log.")] = LogConfiguration()

    @property
    def role(self) -> str:
        return str(type(self).__struct_config__.tag)


class ListeningFile(PartyFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of all parties that others connect to."""

    bind: Annotated[
        str,
        Meta(
            description="Address to listen at, tcp://HOST:PORT: an address of this host, 0.0.0.0 for all of them, "
            "or [::] for all of IPv6 as well."
        ),
    ]
    advertise: Annotated[
        tuple[str, ...],
        Meta(description="Addresses at which other parties reach it, shown at the start for its owner to pass on."),
    ] = ()

    def __post_init__(self) -> None:
        check_addresses(True, bind=self.bind)
        for address in self.advertise:
            check_addresses(advertise=address)


class ServerFile(ListeningFile, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="server"):
    """role = "server"."""

    example: ClassVar[dict[str, Any]] = {"key": "server.key", "bind": "tcp://0.0.0.0:7007"}

    device: Device = "cpu"
    data: Annotated[
        ImagesConfiguration | None,
        Meta(
            description="Test images of the server. Without this section accuracy is that of the clients on "
            "their own images, by secure sum."
        ),
    ] = None


class ClientFile(PartyFile, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="client"):
    """role = "client"."""

    example: ClassVar[dict[str, Any]] = {"key": "client-1.key", "connect": "tcp://server.example:7007"}
    enrolled: ClassVar[Role] = "client"

    device: Device = "cpu"
    connect: Annotated[
        str,
        Meta(
            description="Address of the server, tcp://HOST:PORT: a name, an IPv4 address, or an IPv6 address in "
            "brackets."
        ),
    ]
    patience: Annotated[
        Seconds,
        Meta(description="Seconds to wait for a message of the server outside of a round, while others may train."),
    ] = 3600.0
    grace: Annotated[Seconds, Meta(description="Seconds in which the client tries to reconnect a lost link.")] = 7200.0
    start: Annotated[
        str,
        Meta(
            description="A .safetensors file of initial weights, if this client makes the first model, with "
            'encryption.initial_model = "clients". The two embeddings are still drawn from the clients\' '
            'key; the server sees the other tensors. "": random weights.'
        ),
    ] = ""
    data: Annotated[
        OwnImagesConfiguration, Meta(description="The client's own images; they never leave this host.")
    ] = OwnImagesConfiguration()
    policy: Annotated[ClientPolicy, Meta(description="Policy of this client for the server's proposals.")] = (
        msgspec.field(default_factory=ClientPolicy)
    )

    def __post_init__(self) -> None:
        check_addresses(connect=self.connect)


class DealerFile(ListeningFile, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="dealer"):
    """role = "dealer"."""

    example: ClassVar[dict[str, Any]] = {"key": "dealer.key", "bind": "tcp://0.0.0.0:7008"}
    enrolled: ClassVar[Role] = "dealer"

    device: Device = "cpu"
    answer: AnswerSeconds = 60.0
    adaptation: Annotated[
        SummingSection | None,
        Meta(description="Sums of the data owners' trained adapters, for adaptation."),
    ] = None


AuditFraction = Annotated[
    float,
    Meta(
        description="Share of the dealer's correlated randomness that both owners open, check and discard; "
        "the same for both. 0: no audit.",
        ge=0.0,
        le=0.5,
    ),
]


class OfferSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[policy] of a model owner."""

    logits_bits: Annotated[
        int,
        Meta(
            description="Fractional bits of the logits that data owners receive: fewer disclose less of the model.",
            ge=1,
            le=16,
        ),
    ] = LOGITS.bits
    labels: Annotated[
        int,
        Meta(
            description="0: data owners receive logits; more: only so many labels of an image, the best "
            "first, and no confidence.",
            ge=0,
            le=MOST_LABELS,
        ),
    ] = 0
    images_a_day: Annotated[
        int, Meta(description="Images of each data owner in a day (UTC), refused ones included.", ge=1)
    ] = 10_000
    refused_a_day: Annotated[
        int,
        Meta(
            description="Images of each data owner that may be refused in a day because they are out of "
            "range, or whose pass is aborted when their owner can know the verdict: chosen images can probe "
            "the bounds of the model.",
            ge=1,
        ),
    ] = 500
    audit_fraction: AuditFraction = 0.0


class ModelOwnerFile(ListeningFile, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="model-owner"):
    """role = "model-owner"."""

    example: ClassVar[dict[str, Any]] = {
        "key": "model-owner.key",
        "bind": "tcp://0.0.0.0:7009",
        "dealer": "tcp://dealer.example:7008",
        "model": "student",
    }

    device: Device = "cpu"
    protocol: OwnersProtocol = "tacit"
    dealer: Annotated[str, Meta(description="Address of the dealer, tcp://HOST:PORT.")]
    model: Annotated[
        str,
        Meta(
            description="The folder of results of `tacit distill`, `tacit simulate` or `tacit server`. The "
            "bounds of the numbers also need the model's training images, in their place, or others as "
            "`calibration`. With `architecture`, a checkpoint of timm: a .safetensors file.",
            min_length=1,
        ),
    ]
    architecture: Annotated[
        str,
        Meta(
            description="The timm architecture of a checkpoint, with the tag of its weights if images are "
            'preprocessed as for these (vit_base_patch16_224.mae); "": `model` is a folder.',
        ),
    ] = ""
    calibration: Annotated[
        str,
        Meta(
            description="Typical images for the bounds of the model's values: an image file, or a folder of "
            "them; with [adaptation] labelled ones, for a rehearsal too: a folder with a folder of images for "
            "each class, or an .npz."
        ),
    ] = ""
    image_size: Annotated[
        int,
        Meta(
            description="Edge of a checkpoint's input images, in pixels; 0: that of its pretraining, or 224 "
            "if this has more than 1,024 tokens.",
            ge=0,
            le=4096,
        ),
    ] = 0
    most_images: Annotated[Images, Meta(description="Most images of a data owner in a session.")] = 65536
    most_batch: Annotated[Images, Meta(description="Most images in a pass.")] = 64
    patience: PatienceSeconds = 3600.0
    answer: AnswerSeconds = 60.0

    policy: Annotated[OfferSection, Meta(description="Limits of this model owner for data owners.")] = OfferSection()
    adaptation: Annotated[
        TeachingSection | None,
        Meta(description="Data owners train adapters beside the model, which the model owner does not learn."),
    ] = None

    @property
    def results(self) -> Results:
        """Results that data owners receive for each image."""
        labels = self.policy.labels
        return Results(labels=labels, bits=0 if labels else self.policy.logits_bits)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_addresses(dealer=self.dealer)
        if self.architecture and not self.calibration:
            raise ValueError(
                "calibration is missing: typical images, from which come the bounds of a checkpoint's values"
            )
        if self.image_size and not self.architecture:
            raise ValueError("image_size is for a checkpoint of timm: name its architecture, or leave it out")
        check_protocol(self.protocol, "device", self.device)
        check_protocol(self.protocol, "labels", self.policy.labels, key="policy.labels")
        check_protocol(self.protocol, "model", self.architecture, key="architecture")
        check_protocol(self.protocol, "adaptation", self.adaptation)
        key, batch = "most_batch", self.most_batch
        if self.adaptation is not None:
            key, batch = "adaptation.batch", self.adaptation.batch
        for name in ("images_a_day", "refused_a_day"):
            if (limit := getattr(self.policy, name)) < batch:
                raise ValueError(
                    f"policy.{name} = {limit}: no pass of {key} = {batch} images could begin; set {key} to at most as "
                    "many"
                )


class InferenceSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[policy] of a data owner."""

    logits_bits: Annotated[
        int,
        Meta(description="Least fractional bits of the logits; 0: labels alone suffice.", ge=0, le=16),
    ] = 0
    labels: Annotated[
        int,
        Meta(
            description="Least number of labels per image; logits provide all of them.",
            ge=0,
            le=MOST_LABELS,
        ),
    ] = 0
    weights: Annotated[
        str,
        Meta(
            description="The commitment to the only accepted model, 64 hexadecimal digits, as `tacit "
            'model-owner` prints it; "": any.',
            pattern="^([0-9a-f]{64})?$",
        ),
    ] = ""
    passes_a_day: Annotated[
        int,
        Meta(
            description="Passes with one model owner in a day (UTC), except those of a training, which have "
            'no verdict. The model owner chooses the model and its bounds, so each verdict, "in range" too, '
            "discloses one chosen bit about the images.",
            ge=1,
        ),
    ] = PASSES_A_DAY
    refused_a_day: Annotated[
        int,
        Meta(
            description="Passes with one model owner in a day that may be out of range, or aborted when it "
            "can know the verdict.",
            ge=1,
        ),
    ] = REFUSED_A_DAY
    audit_fraction: AuditFraction = 0.0

    def accepts(self, weights: bytes | None) -> InferencePolicy:
        """Return the policy of a session; weights: commitment to the only accepted model, any if None."""
        quota = Quota(used=self.passes_a_day, refused=self.refused_a_day)
        return InferencePolicy(
            bits=self.logits_bits,
            labels=self.labels,
            weights=weights,
            quota=quota,
            audited=audited_of(self.audit_fraction),
        )


class DataOwnerFile(PartyFile, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="data-owner"):
    """role = "data-owner"."""

    example: ClassVar[dict[str, Any]] = {
        "key": "data-owner.key",
        "model_owner": "tcp://model-owner.example:7009",
        "dealer": "tcp://dealer.example:7008",
        "images": "images",
    }
    enrolled: ClassVar[Role] = "client"

    device: Device = "cpu"
    protocol: OwnersProtocol = "tacit"
    model_owner: Annotated[str, Meta(description="Address of the model owner, tcp://HOST:PORT.")]
    dealer: Annotated[str, Meta(description="Address of the dealer, tcp://HOST:PORT.")]
    images: Annotated[
        str,
        Meta(
            description="Images for inference: an image file, a folder of them, with folders in it, an .npz "
            'file with x_test and y_test, or "digits" for the test digits of scikit-learn. Nobody else sees '
            "them. Not needed for training."
        ),
    ] = ""
    batch: Annotated[Images, Meta(description="Images of a pass.")] = 16
    patience: PatienceSeconds = 3600.0
    answer: AnswerSeconds = 60.0
    policy: Annotated[InferenceSection, Meta(description="Policy of this data owner for the model owner's terms.")] = (
        InferenceSection()
    )
    adaptation: Annotated[
        LearningSection | None,
        Meta(
            description="Train adapters beside the model, with other data owners, on [data]; or predict with "
            "the trained ones."
        ),
    ] = None
    data: Annotated[
        ImagesConfiguration | None,
        Meta(description="Labelled images, of which the training images are used; they never leave this host."),
    ] = None

    @property
    def learns(self) -> LearningSection | None:
        """Settings of its training; None if it requests inference."""
        return None if self.adaptation is None or self.adaptation.purpose == "prediction" else self.adaptation

    def __post_init__(self) -> None:
        check_addresses(model_owner=self.model_owner, dealer=self.dealer)
        check_protocol(self.protocol, "device", self.device)
        check_protocol(self.protocol, "adaptation", self.adaptation)
        if self.learns is None and not self.images:
            raise ValueError("images is missing: what to ask about; or what to learn, in [adaptation] and [data]")
        if (self.adaptation is None and self.data is not None) or (self.learns is not None and self.data is None):
            lacking = "data" if self.data is None else "adaptation"
            raise ValueError(f"[{lacking}] is missing: who learns has both, [adaptation] and [data]")
        if self.learns is not None and self.learns.sums == self.dealer:
            raise ValueError(
                f"adaptation.sums = {literal(self.dealer)}: at this address the dealer deals; it serves the sums at "
                "another one, adaptation.sums of its own file"
            )
        if self.data is not None and self.data.factory:
            raise ValueError("data.factory: only a client of a federation calls it; leave it out")


class PartyFileError(ValueError):
    """A party file that is rejected; the text names the file, the key, the value and the accepted values."""


ROLES: Final[dict[str, type[PartyFile]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (ServerFile, ClientFile, DealerFile, ModelOwnerFile, DataOwnerFile)
}

Kind = TypeVar("Kind", bound=PartyFile)


def read_party(kind: type[Kind], path: Path) -> Kind:
    """Read the file of a party of this role. Raises PartyFileError."""
    role, data = _read(path)
    if ROLES[role] is not kind:
        wanted = str(kind.__struct_config__.tag)
        raise PartyFileError(
            f'{path}: role = "{role}": expected "{wanted}"; run `tacit {role} {path}`, or set the role'
        )
    return _converted(kind, data, path)


def check_data(file: ClientFile, path: Path) -> None:
    """Raise PartyFileError if data come from a function that is not installed here; it is not imported."""
    try:
        if file.data.factory:
            check_installed("data.factory", file.data.factory)
    except FactoryError as error:
        raise PartyFileError(f"{path}: {error}") from None


def read_any(path: Path) -> PartyFile:
    """Read the file of a party of any role. Raises PartyFileError."""
    role, data = _read(path)
    return _converted(ROLES[role], data, path)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    data = read_toml(path, PartyFileError)
    role = data.pop("role", None)
    if not isinstance(role, str) or role not in ROLES:
        given = "role is missing" if role is None else f"role = {literal(role)}"
        raise PartyFileError(f"{path}: {given}: expected {' or '.join(map(literal, ROLES))}")
    return role, data


def _converted(kind: type[Kind], data: dict[str, Any], path: Path) -> Kind:
    try:
        return msgspec.convert(_absolute_paths(data, path.parent), kind, dec_hook=read_section)
    except msgspec.ValidationError as error:
        raise PartyFileError(f"{path}: {refusal(error, data, kind)}") from None


def party_text(file: PartyFile) -> str:
    """The text of a party file, every key explained; reads back as the same file."""
    return f'role = "{file.role}"\n{commented_toml(file, type(file))}'


def party_toml(role: str) -> str:
    """An example file for this role, every key explained. KeyError for an unknown role."""
    kind = ROLES[role]
    title = "# What a party on a host of its own is told. Paths are taken from the folder of this file."
    judged = ""
    if kind is ClientFile:
        judged = "\n# What [policy] accepts in each field of a server's proposal:\n"
        judged += "".join(f"#   {field}: {rule.accepts}\n" for field, rule in rules())
    return f"{title}\n{party_text(kind(**kind.example))}{judged}"


def _absolute_paths(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    defaults = {"roster": "roster.toml", "directory": "state"}
    home = at_home({**defaults, **data}, ("key", "roster", "directory", "model", "calibration", "start"), folder)
    if data.get("images") != "digits":
        home = at_home(home, ("images",), folder)
    if isinstance(images := data.get("data"), Mapping):
        home["data"] = at_home(images, image_paths(images), folder)
    return home
